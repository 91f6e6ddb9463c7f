"""One describer per kind of space: from a value of the space to words or text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ceb_gym.protocols import Settings
from ceb_gym.summaries.words import (
    LEVELS,
    MAX_DIMENSIONS,
    TILES_PER_SIDE,
    DimensionBins,
    chunk_means,
    fixed_edges,
    image_tiles,
    is_bounded,
    padded,
    quantile_edges,
    uniform_edges,
)

Describe = Callable[[Any], list[str]]
CALIBRATION_VALUES = 256


def plain_text(value: Any) -> str:
    """Any value as text, the same for equal values: strings as they are, the rest as compact JSON or repr."""
    if isinstance(value, str):
        return str(value)
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, np.generic):
        return plain_text(value.item())
    if isinstance(value, np.ndarray):
        if value.ndim == 1 and value.size <= MAX_DIMENSIONS and value.dtype.kind in "fiu":
            return "[" + " ".join([f"{number:.4g}" for number in value.tolist()]) + "]"
        return np.array2string(value, precision=4, threshold=64, separator=" ")
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {plain_text(item)}" for key, item in value.items())
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError):
        return repr(value)


class BoxDescriber:
    """Words for the numbers of a Box, with bin edges that never change within a scope.

    Dimensions with finite bounds are binned between them. The others start on a fixed scale; after 256
    observed values their quantiles become the edges, stored in the bank, where the first writer wins.
    """

    def __init__(self, label: str, space: spaces.Box) -> None:
        self._label = label
        low, high = (self._flat(np.asarray(bound, dtype=np.float64)) for bound in (space.low, space.high))
        bounded = [is_bounded(float(a), float(b)) for a, b in zip(low, high, strict=True)]
        self._unbounded = [index for index, known in enumerate(bounded) if not known]
        self._bins = [
            DimensionBins(
                self._name(index, len(low)),
                uniform_edges(float(low[index]), float(high[index])) if known else fixed_edges(),
                "b" if known else "s",
            )
            for index, known in enumerate(bounded)
        ]
        self._seen: list[NDArray[np.float64]] = []
        self._settings: tuple[Settings, str] | None = None

    def _name(self, index: int, count: int) -> str:
        return f"{self._label}_{padded(index, count)}"

    @staticmethod
    def _flat(values: NDArray[np.float64]) -> NDArray[np.float64]:
        flat = values.reshape(-1)
        return flat if flat.size <= MAX_DIMENSIONS else chunk_means(flat, MAX_DIMENSIONS)

    def __call__(self, value: Any) -> list[str]:
        """The words of every dimension (of 64 chunk means where there are more dimensions)."""
        numbers = self._flat(np.asarray(value, dtype=np.float64)).tolist()
        return [word for number, bins in zip(numbers, self._bins, strict=True) for word in bins.words(number)]

    def bind(self, settings: Settings, scope: str) -> None:
        """Takes the scope's frozen edges from the bank, and will store them there once they are known."""
        self._settings = (settings, scope)
        if self._unbounded and (stored := settings.setting(scope, self._setting_name)) is not None:
            self._freeze(json.loads(stored))

    @property
    def _setting_name(self) -> str:
        return f"box_edges:{self._label}:{len(self._bins)}"

    def observe(self, value: Any) -> None:
        """Counts one observed value until there are enough to freeze the edges."""
        if not self._unbounded or self._settings is None:
            return
        numbers = self._flat(np.asarray(value, dtype=np.float64))[self._unbounded]
        if np.isfinite(numbers).all():
            self._seen.append(numbers)
        if len(self._seen) >= CALIBRATION_VALUES:
            seen = np.stack(self._seen)
            edges = [quantile_edges(seen[:, column]) for column in range(seen.shape[1])]
            settings, scope = self._settings
            self._freeze(json.loads(settings.put_setting(scope, self._setting_name, json.dumps(edges))))

    def _freeze(self, edges: Sequence[Sequence[Sequence[float]]]) -> None:
        for index, levels in zip(self._unbounded, edges, strict=True):
            self._bins[index] = DimensionBins(self._name(index, len(self._bins)), levels, "q")
        self._unbounded = []
        self._seen = []


class SpaceDescriber:
    """Describes values of any Gymnasium space; what does not fit its space is described by its value.

    Args:
        space: The space, or None where it is unknown.
        label: First part of each word, such as `state` or `action`.
        names: Names of a discrete space's values, used in place of numbers.
    """

    def __init__(self, space: spaces.Space[Any] | None, label: str, names: Sequence[str] = ()) -> None:
        self._boxes: list[tuple[tuple[Any, ...], BoxDescriber]] = []
        self._describe = self._build(space, label, tuple(names), ())
        self.numeric = isinstance(
            space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box
        )

    def __call__(self, value: Any) -> list[str]:
        """The words (numeric spaces) or lines of text of a value."""
        return self._describe(value)

    def bind(self, settings: Settings, scope: str) -> None:
        """Takes frozen bin edges from the bank."""
        for _, box in self._boxes:
            box.bind(settings, scope)

    def observe(self, value: Any) -> None:
        """Lets boxes with unknown bounds see one more value."""
        for path, box in self._boxes:
            part = value
            try:
                for key in path:
                    part = part[key]
                box.observe(part)
            except (KeyError, IndexError, TypeError, ValueError):
                continue  # a value outside its space is described by its value and calibrates nothing

    def _build(
        self, space: spaces.Space[Any] | None, label: str, names: tuple[str, ...], path: tuple[Any, ...]
    ) -> Describe:
        describe = self._for_space(space, label, names, path)

        def guarded(value: Any) -> list[str]:
            try:
                return describe(value)
            except (TypeError, ValueError, KeyError, IndexError, AttributeError):
                return [plain_text(value)]

        return guarded

    def _for_space(
        self, space: spaces.Space[Any] | None, label: str, names: tuple[str, ...], path: tuple[Any, ...]
    ) -> Describe:
        if isinstance(space, spaces.Discrete):
            return _discrete(space, label, names)
        if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
            return _multi_discrete(space, label)
        if isinstance(space, spaces.Box):
            if _is_image(space):
                low, high = float(np.min(space.low)), float(np.max(space.high))
                return lambda value: image_tiles(_checked(np.asarray(value), space.shape), low, high)
            box = BoxDescriber(label, space)
            self._boxes.append((path, box))
            return box
        if isinstance(space, spaces.Dict):
            parts = {
                key: self._build(part, f"{label}_{key}", (), (*path, key))
                for key, part in space.spaces.items()
            }
            return lambda value: [_part(key, part(value[key])) for key, part in parts.items()]
        if isinstance(space, spaces.Tuple):
            items = [
                self._build(part, f"{label}_{index}", (), (*path, index))
                for index, part in enumerate(space.spaces)
            ]
            return lambda value: [
                word for item, part in zip(items, value, strict=True) for word in item(part)
            ]
        return lambda value: [plain_text(value)]


def _part(key: str, words: list[str]) -> str:
    return f"{key}: {' '.join(words)}"


def _checked(values: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    if values.shape != shape:
        raise ValueError(f"shape {values.shape} where {shape} was declared")
    return values


def _is_image(space: spaces.Box) -> bool:
    shape = space.shape
    channels_last = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    large = len(shape) >= 2 and min(shape[:2]) >= TILES_PER_SIDE
    return channels_last and large and is_bounded(float(np.min(space.low)), float(np.max(space.high)))


def _discrete(space: spaces.Discrete[Any], label: str, names: tuple[str, ...]) -> Describe:
    start, count = int(space.start), int(space.n)
    words = [f"{label}_{name}" for name in names]
    if len(words) != count:
        words = [f"{label}_{padded(start + index, start + count)}" for index in range(min(count, 4096))]

    def describe(value: Any) -> list[str]:
        if isinstance(value, str | float | np.floating):
            raise TypeError("a discrete value is an integer")
        index = int(value) - start
        if not 0 <= index < count:
            raise ValueError("outside its space")
        return [words[index] if index < len(words) else f"{label}_{padded(start + index, start + count)}"]

    return describe


def _multi_discrete(space: spaces.MultiDiscrete[Any] | spaces.MultiBinary, label: str) -> Describe:
    size = int(np.prod(space.shape))
    names = [f"{label}_{padded(index, size)}" for index in range(size)]

    def describe(value: Any) -> list[str]:
        numbers = np.asarray(value).reshape(-1).tolist()
        return [f"{name}_{padded(int(number), 10)}" for name, number in zip(names, numbers, strict=True)]

    return describe


__all__ = ["LEVELS", "SpaceDescriber", "plain_text"]
