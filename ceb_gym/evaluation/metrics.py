"""How well confidences fit what happened.

Bins of equal width are [a, b) with the last one closed. Bins of equal mass hold the same number of steps, as
far as equal confidences, which stay together, allow. Undefined values are None, never a neutral number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ceb_gym.errors import MetricInputError
from ceb_gym.evaluation.bootstrap import DEFAULT_RESAMPLES, Interval, bootstrap_intervals
from ceb_gym.evaluation.metric_inputs import (
    Binning,
    BoolArray,
    FloatArray,
    check_binning,
    check_confidence,
    check_correct,
    split_scored,
)
from ceb_gym.evaluation.weighted import DEFAULT_BINS, SortedSteps, WeightedMetrics


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The metrics of one estimator on one set of steps.

    Attributes:
        n_episodes: Number of episodes with any step in the set.
        n_steps: Number of steps, scored or not.
        n_scored: Number of scored steps; all metrics but `base_rate` and `coverage` are about these.
        base_rate: Share of productive steps among all steps.
        ece: Expected calibration error, 10 bins of equal width.
        ece_15: The same with 15 bins.
        ece_mass: The same with 10 bins of equal mass.
        mce: Largest gap of one of the 10 bins of equal width.
        brier: Mean squared gap.
        brier_calibration: The part of `brier` that comes from the mean gaps of the 10 bins.
        brier_refinement: The part of `brier` that is left within the bins.
        brier_skill: 1 - `brier` / Brier score of always saying the scored steps' own positive rate.
        auc: Area under the ROC curve.
        average_precision: Area under the precision-recall steps.
        coverage: Share of steps that were scored.
        ci: Bootstrap interval over episodes by metric name; None where undefined.
    """

    n_episodes: int
    n_steps: int
    n_scored: int
    base_rate: float | None = None
    ece: float | None = None
    ece_15: float | None = None
    ece_mass: float | None = None
    mce: float | None = None
    brier: float | None = None
    brier_calibration: float | None = None
    brier_refinement: float | None = None
    brier_skill: float | None = None
    auc: float | None = None
    average_precision: float | None = None
    coverage: float | None = None
    ci: Mapping[str, Interval | None] = field(default_factory=dict)

    @classmethod
    def of_no_steps(cls) -> MetricSummary:
        """Returns the summary for a set without steps, in which nothing is defined."""
        return cls(n_episodes=0, n_steps=0, n_scored=0)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON can hold them; undefined ones are None."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["ci"] = {name: None if pair is None else list(pair) for name, pair in self.ci.items()}
        return values


def summarize(
    confidence: Sequence[float | None],
    correct: Sequence[bool] | BoolArray,
    episode_ids: Sequence[str],
    *,
    resamples: int = DEFAULT_RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> MetricSummary:
    """Computes all metrics of one estimator.

    Args:
        confidence: Shape (n,), in [0, 1]; None for unscored steps, which are left out and counted.
        correct: Shape (n,), whether each step was productive.
        episode_ids: Shape (n,), the episode of each step.
        resamples: Bootstrap resamples of the episodes; 0 for no intervals.
        level: Probability the intervals cover.
        seed: For the resampling.

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning; it names value
            and position.
    """
    if not len(confidence) == len(correct) == len(episode_ids):
        raise MetricInputError(
            f"There are {len(confidence)} confidences, {len(correct)} labels and {len(episode_ids)} episode "
            "ids; give one of each for every step."
        )
    scored, scores = split_scored(confidence)
    labels = check_correct(correct, len(confidence))
    metrics: dict[str, float | None] = {}
    if scored.any():
        table = WeightedMetrics(SortedSteps(scores, labels[scored]), np.ones((1, scores.size))).all()
        metrics = {name: _defined(value) for name, value in table.items()}
    intervals = (
        bootstrap_intervals(confidence, labels, episode_ids, resamples=resamples, level=level, seed=seed)
        if resamples
        else {}
    )
    return MetricSummary(
        n_episodes=len(set(episode_ids)),
        n_steps=len(confidence),
        n_scored=int(scored.sum()),
        base_rate=float(labels.mean()),
        coverage=float(scored.mean()),
        ci=intervals,
        **metrics,
    )


def expected_calibration_error(
    confidence: Sequence[float] | FloatArray,
    correct: Sequence[bool] | BoolArray,
    *,
    num_bins: int = DEFAULT_BINS,
    binning: Binning = "width",
) -> float:
    """Mean over steps of the absolute gap between mean confidence and positive rate of the step's bin.

    Args:
        confidence: Shape (n,), in [0, 1].
        correct: Shape (n,), whether each step was productive.
        num_bins: Number of bins, at least 1.
        binning: "width" for bins of equal width, "mass" for bins of equally many steps.

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.
        ConfigurationError: If the binning has no meaning.

    Source: Naeini et al. (2015); equal mass: Nixon et al. (2019).
    """
    check_binning(num_bins, binning)
    return float(_weighted(confidence, correct).expected_calibration_error(num_bins, binning)[0])


def maximum_calibration_error(
    confidence: Sequence[float] | FloatArray,
    correct: Sequence[bool] | BoolArray,
    *,
    num_bins: int = DEFAULT_BINS,
    binning: Binning = "width",
) -> float:
    """Largest absolute gap of any bin that is not empty; arguments and errors as for the expected one.

    Source: Naeini et al. (2015).
    """
    check_binning(num_bins, binning)
    return float(_weighted(confidence, correct).maximum_calibration_error(num_bins, binning)[0])


def brier_score(confidence: Sequence[float] | FloatArray, correct: Sequence[bool] | BoolArray) -> float:
    """Mean squared gap between confidence and outcome; lower is better.

    Args:
        confidence: Shape (n,), in [0, 1].
        correct: Shape (n,), whether each step was productive.

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.

    Source: Brier (1950), binary form.
    """
    return float(_weighted(confidence, correct).brier_score()[0])


def brier_parts(
    confidence: Sequence[float] | FloatArray,
    correct: Sequence[bool] | BoolArray,
    *,
    num_bins: int | None = DEFAULT_BINS,
) -> tuple[float, float]:
    """Splits the Brier score into calibration and refinement, which add up to it.

    With gap = confidence - outcome, calibration is the mean over steps of the squared mean gap of the step's
    bin, refinement the mean variance of the gap within the bins. Over distinct confidence values this is
    Murphy's reliability and (uncertainty - resolution).

    Args:
        confidence: Shape (n,), in [0, 1].
        correct: Shape (n,), whether each step was productive.
        num_bins: Bins of equal width; None for one bin per distinct confidence, which says little when
            nearly all confidences differ.

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.

    Source: Murphy (1973); within bins: Stephenson et al. (2008).
    """
    if num_bins is not None:
        check_binning(num_bins, "width")
    calibration, refinement = _weighted(confidence, correct).brier_parts(num_bins)
    return float(calibration[0]), float(refinement[0])


def brier_skill(
    confidence: Sequence[float] | FloatArray, correct: Sequence[bool] | BoolArray
) -> float | None:
    """1 - Brier / Brier of always saying these steps' own positive rate; None where only one class is.

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.
    """
    return _defined(_weighted(confidence, correct).brier_skill())


def roc_auc(confidence: Sequence[float] | FloatArray, correct: Sequence[bool] | BoolArray) -> float | None:
    """Chance that a productive step outranks an unproductive one, ties half; None where only one class is.

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.
    """
    return _defined(_weighted(confidence, correct).roc_auc())


def average_precision(
    confidence: Sequence[float] | FloatArray, correct: Sequence[bool] | BoolArray
) -> float | None:
    """Precision at each distinct confidence, weighted by the recall it adds; None without a productive step.

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.
    """
    return _defined(_weighted(confidence, correct).average_precision())


def coverage(confidence: Sequence[float | None]) -> float:
    """Share of steps that were scored.

    Raises:
        MetricInputError: If there are no steps.
    """
    scored, _ = split_scored(confidence)
    return float(scored.mean())


def _weighted(
    confidence: Sequence[float] | FloatArray, correct: Sequence[bool] | BoolArray
) -> WeightedMetrics:
    scores = check_confidence(confidence)
    return WeightedMetrics(
        SortedSteps(scores, check_correct(correct, scores.size)), np.ones((1, scores.size))
    )


def _defined(values: FloatArray) -> float | None:
    return None if np.isnan(values[0]) else float(values[0])
