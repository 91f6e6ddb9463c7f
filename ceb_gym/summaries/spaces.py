"""One describer per kind of space: from a value of the space to words or text."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ceb_gym.protocols import Settings
from ceb_gym.summaries.boxes import BoxDescriber
from ceb_gym.summaries.plain import plain_text, values_are_numbers
from ceb_gym.summaries.words import (
    LEVELS,
    MAX_DIMENSIONS,
    TILES_PER_SIDE,
    chunk_means,
    image_tiles,
    is_bounded,
    number_word,
    padded,
)

Describe = Callable[[Any], list[str]]
Path = tuple[Any, ...]
NUMERIC = spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box
_MAX_ITEMS = 4 * MAX_DIMENSIONS


def value_words(label: str, value: Any) -> list[str]:
    """Text for a value of which no space tells anything; numbers, which have no terms, become words."""
    try:
        if isinstance(value, Mapping):
            return [_line(key, value_words(f"{label}_{key}", item)) for key, item in value.items()]
        numbers = np.asarray(value)
    except (ValueError, RecursionError):  # rows of different lengths, a mapping that holds itself
        return [plain_text(value)]
    if not values_are_numbers(numbers) or numbers.size == 0:
        return [plain_text(value)]
    if numbers.ndim == 0:
        return [number_word(label, numbers.item())]
    flat = numbers.reshape(-1)
    if flat.size > MAX_DIMENSIONS:
        flat = chunk_means(flat.astype(np.float64), MAX_DIMENSIONS)
    names = [f"{label}_{padded(index, flat.size)}" for index in range(flat.size)]
    return [number_word(name, number) for name, number in zip(names, flat.tolist(), strict=True)]


def _line(key: Any, words: Sequence[str]) -> str:
    return f"{key}: {' '.join(words)}"


def holds_text(space: spaces.Space[Any] | None) -> bool:
    """Whether values of the space can be or contain text, which has no natural limit."""
    if isinstance(space, spaces.Dict):
        return any(holds_text(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple | spaces.OneOf):
        return any(holds_text(part) for part in space.spaces)
    if isinstance(space, spaces.Sequence):
        return holds_text(space.feature_space)
    return not isinstance(space, NUMERIC)


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
        self.numeric = isinstance(space, NUMERIC)
        self.holds_text = holds_text(space)

    def __call__(self, value: Any) -> list[str]:
        """The words (numeric spaces) or lines of text of a value."""
        return self._describe(value)

    def bind(self, settings: Settings, scope: str) -> None:
        """Takes frozen bin edges from the bank."""
        for _, box in self._boxes:
            box.bind(settings, scope)

    def refresh(self) -> None:
        """Between episodes: takes or freezes bin edges that are not known yet."""
        for _, box in self._boxes:
            box.refresh()

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
        self, space: spaces.Space[Any] | None, label: str, names: tuple[str, ...], path: Path | None
    ) -> Describe:
        describe = self._for_space(space, label, names, path)

        def guarded(value: Any) -> list[str]:
            try:
                return describe(value)
            except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError):
                return value_words(label, value)

        return guarded

    def _for_space(
        self, space: spaces.Space[Any] | None, label: str, names: tuple[str, ...], path: Path | None
    ) -> Describe:
        if isinstance(space, spaces.Discrete):
            return _discrete(space, label, names)
        if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
            return _multi_discrete(space, label)
        if isinstance(space, spaces.Box):
            return _image(space, label, path) if _is_image(space) else self._box(space, label, path)
        if isinstance(space, spaces.Dict):
            return self._dict(space, label, path)
        if isinstance(space, spaces.Tuple):
            return self._tuple(space, label, path)
        if isinstance(space, spaces.Sequence):
            return self._sequence(space, label)
        if isinstance(space, spaces.OneOf):
            return self._one_of(space, label)
        return lambda value: value_words(label, value)

    def _box(self, space: spaces.Box, label: str, path: Path | None) -> Describe:
        box = BoxDescriber(label, space.low, space.high)
        if path is not None:
            self._boxes.append((path, box))
        return box

    def _dict(self, space: spaces.Dict, label: str, path: Path | None) -> Describe:
        parts = {
            key: self._build(part, f"{label}_{key}", (), _below(path, key))
            for key, part in space.spaces.items()
        }
        return lambda value: [_line(key, part(value[key])) for key, part in parts.items()]

    def _tuple(self, space: spaces.Tuple[Any], label: str, path: Path | None) -> Describe:
        items = [
            self._build(part, f"{label}_{index}", (), _below(path, index))
            for index, part in enumerate(space.spaces)
        ]
        return lambda value: [word for item, part in zip(items, value, strict=True) for word in item(part)]

    def _sequence(self, space: spaces.Sequence, label: str) -> Describe:
        item = self._build(space.feature_space, f"{label}_item", (), None)

        def describe(value: Any) -> list[str]:
            if isinstance(value, str | bytes | Mapping):
                raise TypeError("a sequence has items")
            words = [f"{label}_len_{padded(len(value), 10)}"]
            for part in list(value)[:_MAX_ITEMS]:
                words += item(part)
            return words[: _MAX_ITEMS + 1]

        return describe

    def _one_of(self, space: spaces.OneOf[Any], label: str) -> Describe:
        parts = [self._build(part, f"{label}_{index}", (), None) for index, part in enumerate(space.spaces)]

        def describe(value: Any) -> list[str]:
            chosen, part = value
            index = operator.index(chosen)
            if not 0 <= index < len(parts):
                raise ValueError("outside its space")
            return [f"{label}_option_{padded(index, len(parts))}", *parts[index](part)]

        return describe


def _below(path: Path | None, key: Any) -> Path | None:
    return None if path is None else (*path, key)


def _image(space: spaces.Box, label: str, path: Path | None) -> Describe:
    low, high = float(np.min(space.low)), float(np.max(space.high))
    prefix = "tile" if path == () else f"{label}_tile"
    return lambda value: image_tiles(_checked(np.asarray(value), space.shape), low, high, prefix)


def _checked(values: NDArray[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    if values.shape != shape or not values_are_numbers(values):
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
        # agents often hand over an array of one integer
        single = isinstance(value, np.ndarray) and value.size == 1
        number = operator.index(value.reshape(-1)[0] if single else value)
        index = number - start
        known = 0 <= index < len(words)
        return [words[index] if known else f"{label}_{padded(number, start + count)}"]

    return describe


def _multi_discrete(space: spaces.MultiDiscrete[Any] | spaces.MultiBinary, label: str) -> Describe:
    size = int(np.prod(space.shape))
    if size > _MAX_ITEMS and isinstance(space, spaces.MultiBinary):
        return BoxDescriber(label, np.zeros(size), np.ones(size))
    if size > _MAX_ITEMS and isinstance(space, spaces.MultiDiscrete):
        return BoxDescriber(label, space.start, space.start + space.nvec - 1)
    names = [f"{label}_{padded(index, size)}" for index in range(size)]

    def describe(value: Any) -> list[str]:
        values = np.asarray(value)
        if not values_are_numbers(values):
            raise TypeError("not numbers")
        return [
            number_word(name, number) for name, number in zip(names, values.reshape(-1).tolist(), strict=True)
        ]

    return describe


__all__ = ["LEVELS", "SpaceDescriber", "plain_text"]
