"""Words for real numbers, with bin edges that are frozen per scope."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ceb_gym.errors import BankError
from ceb_gym.protocols import Settings
from ceb_gym.summaries.plain import values_are_numbers
from ceb_gym.summaries.words import (
    MAX_DIMENSIONS,
    DimensionBins,
    chunk_means,
    fixed_edges,
    is_bounded,
    padded,
    quantile_edges,
    uniform_edges,
)

CALIBRATION_VALUES = 256
_SHOWN_LABEL_CHARS = 60


class BoxDescriber:
    """Words for the numbers of a Box, with bin edges that never change within a scope.

    Dimensions with finite bounds are binned between them. The others start on a fixed scale; at the first
    reset after 256 observed values their quantiles become the edges, stored in the bank, where the first
    writer wins. Words never change within an episode.

    Args:
        label: First part of each word.
        low: Lower bounds, any shape.
        high: Upper bounds, same shape.
    """

    def __init__(self, label: str, low: NDArray[Any], high: NDArray[Any]) -> None:
        self._label = label
        self._size = low.size
        low, high = (self._flat(np.asarray(bound, dtype=np.float64)) for bound in (low, high))
        bounded = [is_bounded(float(a), float(b)) for a, b in zip(low, high, strict=True)]
        self._never_known = [index for index, known in enumerate(bounded) if not known]
        self._unbounded = self._never_known
        self._bins = self._first_bins = [
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

    def _numbers(self, value: Any) -> NDArray[np.float64]:
        values = np.asarray(value)
        if values.size != self._size or not values_are_numbers(values):
            raise ValueError(f"no {self._size} numbers")
        return self._flat(values.astype(np.float64))

    def __call__(self, value: Any) -> list[str]:
        """The words of every dimension (of 64 chunk means where there are more dimensions)."""
        numbers = self._numbers(value).tolist()
        return [word for number, bins in zip(numbers, self._bins, strict=True) for word in bins.words(number)]

    def bind(self, settings: Settings, scope: str) -> None:
        """Starts anew with a scope of a bank: nothing seen in another one has any effect."""
        self._settings = (settings, scope)
        self._bins, self._unbounded, self._seen = self._first_bins, self._never_known, []
        self.refresh()

    @property
    def _setting_name(self) -> str:
        label = self._label
        if len(label) > _SHOWN_LABEL_CHARS or not label.isprintable():  # a bank's names are short and clean
            label = hashlib.sha256(label.encode("utf-8", "backslashreplace")).hexdigest()[:16]
        return f"box_edges:{label}:{len(self._bins)}:{len(self._never_known)}"

    def observe(self, value: Any) -> None:
        """Counts one observed value until there are enough for the edges."""
        if not self._unbounded or self._settings is None or len(self._seen) >= CALIBRATION_VALUES:
            return
        numbers = self._numbers(value)[self._unbounded]
        if np.isfinite(numbers).all():
            self._seen.append(numbers)

    def refresh(self) -> None:
        """Between episodes: takes the edges that the scope has, or freezes its own where enough was seen."""
        if not self._unbounded or self._settings is None:
            return
        settings, scope = self._settings
        stored = settings.setting(scope, self._setting_name)
        if stored is None and len(self._seen) >= CALIBRATION_VALUES:
            seen = np.stack(self._seen)
            edges = [quantile_edges(seen[:, column]) for column in range(seen.shape[1])]
            try:
                stored = settings.put_setting(scope, self._setting_name, json.dumps(edges))
            except BankError:  # read-only or full: words that no other process knows would match nothing
                self._seen = []
        if stored is not None:
            self._freeze(json.loads(stored))

    def _freeze(self, edges: Sequence[Sequence[Sequence[float]]]) -> None:
        self._bins = list(self._bins)
        for index, levels in zip(self._unbounded, edges, strict=True):
            self._bins[index] = DimensionBins(self._name(index, len(self._bins)), levels, "q")
        self._unbounded, self._seen = [], []
