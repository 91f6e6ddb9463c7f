"""All confidence metrics at once, for many weightings of the same steps.

A point estimate is the weighting by ones; a bootstrap resample weighs each step by how often its episode was
drawn. Both therefore use one definition of each metric. The steps are sorted by confidence once, which
makes every bin a contiguous run and every bin sum a difference of cumulative sums.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ceb_gym.evaluation.metric_inputs import Binning, BoolArray, FloatArray

IntArray = NDArray[np.int64]

DEFAULT_BINS: Final = 10
FINE_BINS: Final = 15
METRIC_NAMES: Final = (
    "ece",
    "ece_15",
    "ece_mass",
    "mce",
    "brier",
    "brier_calibration",
    "brier_refinement",
    "brier_skill",
    "auc",
    "average_precision",
)


class SortedSteps:
    """Scored steps in the order of their confidence, ready for any weighting.

    Attributes:
        confidence: Ascending, shape (n,).
        correct: 1.0 or 0.0, shape (n,).
        order: Position of each sorted step in the input, shape (n,).
    """

    def __init__(self, confidence: FloatArray, correct: BoolArray) -> None:
        """Sorts checked inputs of shape (n,) each."""
        self.order: IntArray = np.argsort(confidence, kind="stable")
        self.confidence: FloatArray = confidence[self.order]
        self.correct: FloatArray = correct[self.order].astype(np.float64)
        new_value = np.diff(self.confidence, prepend=-1.0) != 0.0
        self.group_starts: IntArray = np.flatnonzero(new_value)
        self.start_of_group: IntArray = self.group_starts[np.cumsum(new_value) - 1]

    def width_bounds(self, num_bins: int) -> IntArray:
        """Returns where the bins [a, b) of equal width start and end, the last one closed: (num_bins + 1,).

        The edges are the floats nearest to k / num_bins, so that .3 is the edge of bin 3 of 10.
        """
        edges = np.arange(1, num_bins) / num_bins
        inner = np.searchsorted(self.confidence, edges, side="left")
        return np.concatenate(([0], inner, [self.confidence.size])).astype(np.int64)


class WeightedMetrics:
    """The metrics of sorted steps under several weightings; each result has shape (n_weightings,).

    Undefined values are NaN: nothing is scored, or only one class is present where two are needed.
    """

    def __init__(self, steps: SortedSteps, weights: FloatArray) -> None:
        """Prepares the sums.

        Args:
            steps: The steps, n of them.
            weights: Shape (n_weightings, n), whole numbers, columns in the input's order.
        """
        self._steps = steps
        self._weights = weights[:, steps.order]
        self._gaps = steps.confidence - steps.correct
        self._gap_sums = _cumulative(self._weights * self._gaps)
        self._weight_sums = _cumulative(self._weights)
        self._total = self._weight_sums[:, -1]

    def all(self) -> dict[str, FloatArray]:
        """Returns every metric by name, in the order of METRIC_NAMES."""
        calibration, refinement = self.brier_parts(DEFAULT_BINS)
        values = (
            self.expected_calibration_error(DEFAULT_BINS, "width"),
            self.expected_calibration_error(FINE_BINS, "width"),
            self.expected_calibration_error(DEFAULT_BINS, "mass"),
            self.maximum_calibration_error(DEFAULT_BINS, "width"),
            self.brier_score(),
            calibration,
            refinement,
            self.brier_skill(),
            self.roc_auc(),
            self.average_precision(),
        )
        return dict(zip(METRIC_NAMES, values, strict=True))

    def expected_calibration_error(self, num_bins: int, binning: Binning) -> FloatArray:
        """Mean over steps of the absolute gap of the step's bin."""
        gaps, _ = self._bin_sums(self._bounds(num_bins, binning))
        return _divide(np.abs(gaps).sum(axis=1), self._total)

    def maximum_calibration_error(self, num_bins: int, binning: Binning) -> FloatArray:
        """Largest absolute gap of a bin that holds any step."""
        gaps, counts = self._bin_sums(self._bounds(num_bins, binning))
        largest = np.divide(np.abs(gaps), counts, out=np.zeros_like(gaps), where=counts > 0).max(axis=1)
        return np.where(self._total > 0, largest, np.nan)

    def brier_score(self) -> FloatArray:
        """Mean squared gap."""
        return _divide(self._weights @ np.square(self._gaps), self._total)

    def brier_parts(self, num_bins: int | None) -> tuple[FloatArray, FloatArray]:
        """Mean over bins of the squared mean gap, and of the variance of the gap within the bin."""
        if num_bins is None:
            ends = np.append(self._steps.group_starts, self._gaps.size)
            bounds = np.broadcast_to(ends, (self._weights.shape[0], ends.size))
        else:
            bounds = self._bounds(num_bins, "width")
        gaps, counts = self._bin_sums(bounds)
        squared = np.divide(np.square(gaps), counts, out=np.zeros_like(gaps), where=counts > 0)
        calibration = _divide(squared.sum(axis=1), self._total)
        # A variance cannot be negative; the difference of two equal sums can, by one rounding.
        return calibration, np.maximum(self.brier_score() - calibration, 0.0)

    def brier_skill(self) -> FloatArray:
        """1 - Brier / Brier of always saying the positive rate of these steps."""
        rate = self.positive_rate()
        return 1.0 - _divide(self.brier_score(), rate * (1.0 - rate))

    def positive_rate(self) -> FloatArray:
        """Share of productive steps."""
        return _divide(self._weights @ self._steps.correct, self._total)

    def roc_auc(self) -> FloatArray:
        """Chance that a productive step outranks an unproductive one; ties count half."""
        positives, negatives = self._group_sums()
        below = np.cumsum(negatives, axis=1) - negatives
        wins = (positives * (below + 0.5 * negatives)).sum(axis=1)
        return _divide(wins, positives.sum(axis=1) * negatives.sum(axis=1))

    def average_precision(self) -> FloatArray:
        """Precision at each distinct threshold, weighted by the recall it adds."""
        positives, negatives = (sums[:, ::-1] for sums in self._group_sums())
        hits = np.cumsum(positives, axis=1)
        kept = hits + np.cumsum(negatives, axis=1)
        precision = np.divide(hits, kept, out=np.zeros_like(hits), where=kept > 0)
        return _divide((precision * positives).sum(axis=1), positives.sum(axis=1))

    def bins(self, num_bins: int, binning: Binning) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns count, summed confidence and number of productive steps of each bin of each weighting."""
        bounds = self._bounds(num_bins, binning)
        gaps, counts = self._bin_sums(bounds)
        productive = _between(_cumulative(self._weights * self._steps.correct), bounds)
        return counts, gaps + productive, productive

    def _bounds(self, num_bins: int, binning: Binning) -> IntArray:
        n_weightings = self._weights.shape[0]
        if binning == "width":
            bounds = self._steps.width_bounds(num_bins)
            return np.broadcast_to(bounds, (n_weightings, bounds.size))
        # An inner edge is the step of rank total * k / num_bins; equal confidences share the upper bin.
        columns = [np.zeros(n_weightings, dtype=np.int64)]
        for k in range(1, num_bins):
            rank = np.floor(self._total * k / num_bins)
            edge = (self._weight_sums[:, 1:] > rank[:, None]).argmax(axis=1)
            columns.append(self._steps.start_of_group[edge])
        columns.append(np.full(n_weightings, self._gaps.size, dtype=np.int64))
        return np.stack(columns, axis=1)

    def _bin_sums(self, bounds: IntArray) -> tuple[FloatArray, FloatArray]:
        return _between(self._gap_sums, bounds), _between(self._weight_sums, bounds)

    def _group_sums(self) -> tuple[FloatArray, FloatArray]:
        starts = self._steps.group_starts
        positives = np.add.reduceat(self._weights * self._steps.correct, starts, axis=1)
        return positives, np.add.reduceat(self._weights, starts, axis=1) - positives


def _cumulative(values: FloatArray) -> FloatArray:
    sums = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def _between(sums: FloatArray, bounds: IntArray) -> FloatArray:
    return np.diff(np.take_along_axis(sums, bounds, axis=1), axis=1)


def _divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    undefined = np.full_like(numerator, np.nan)
    return np.divide(numerator, denominator, out=undefined, where=denominator > 0)
