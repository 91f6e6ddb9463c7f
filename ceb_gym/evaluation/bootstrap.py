"""Intervals by resampling whole episodes: steps of one episode depend on each other.

Resampling single steps halved the intervals on one public set of runs. A resample is a weight per step (how
often its episode was drawn), so all metrics of all resamples come from a few array operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ceb_gym.errors import ConfigurationError, MetricInputError
from ceb_gym.evaluation.metric_inputs import BoolArray, FloatArray, check_correct, split_scored
from ceb_gym.evaluation.weighted import METRIC_NAMES, SortedSteps, WeightedMetrics

Interval = tuple[float, float]

DEFAULT_RESAMPLES: Final = 1_000
_CELLS_AT_ONCE = 2_000_000
_MIN_DEFINED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How much larger a metric of the first estimator is than that of the second, on the same steps.

    Attributes:
        difference: First minus second; None where either is undefined.
        ci: Bootstrap interval of the difference; None where undefined.
    """

    difference: float | None
    ci: Interval | None


def bootstrap_intervals(
    confidence: Sequence[float | None],
    correct: Sequence[bool] | BoolArray,
    episode_ids: Sequence[str],
    *,
    resamples: int = DEFAULT_RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval | None]:
    """Percentile intervals of every metric, of `base_rate` and of `coverage`.

    Args:
        confidence: Shape (n,), in [0, 1]; None for unscored steps.
        correct: Shape (n,), whether each step was productive.
        episode_ids: Shape (n,), the episode of each step.
        resamples: How many times the episodes are drawn with replacement.
        level: Probability the intervals cover.
        seed: For the resampling.

    Returns:
        (low, high) by metric name. None with fewer than two episodes, and where the metric is undefined in
        these steps or in more than half of the resamples (the others are then left out).

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.
    """
    scored, scores = split_scored(confidence)
    labels = check_correct(correct, len(confidence))
    steps = SortedSteps(scores, labels[scored]) if scores.size else None
    chunks: list[dict[str, FloatArray]] = []
    for weights in _episode_weights(episode_ids, len(confidence), resamples, seed):
        total = weights.sum(axis=1)
        values = {"base_rate": weights @ labels / total, "coverage": weights @ scored / total}
        if steps is not None:
            values |= WeightedMetrics(steps, weights[:, scored]).all()
        chunks.append(values)
    intervals: dict[str, Interval | None] = {}
    for name in ("base_rate", *METRIC_NAMES, "coverage"):
        known = name in chunks[0] and len(set(episode_ids)) > 1
        intervals[name] = _interval([chunk[name] for chunk in chunks], level) if known else None
    return intervals


def paired_differences(
    first: Sequence[float | None],
    second: Sequence[float | None],
    correct: Sequence[bool] | BoolArray,
    episode_ids: Sequence[str],
    *,
    resamples: int = DEFAULT_RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, PairedDifference]:
    """Compares two estimators on the steps that both scored, resampling the same episodes for both.

    Args:
        first: Confidences of one estimator, shape (n,); None for unscored steps.
        second: Confidences of the other, shape (n,).
        correct: Shape (n,), whether each step was productive.
        episode_ids: Shape (n,), the episode of each step.
        resamples: How many times the episodes are drawn with replacement.
        level: Probability the intervals cover.
        seed: For the resampling.

    Raises:
        MetricInputError: If the lengths differ, no step is scored by both, or a score or label has no
            meaning.
    """
    if len(first) != len(second):
        raise MetricInputError(f"There are {len(first)} and {len(second)} confidences; score the same steps.")
    (first_scored, first_scores), (second_scored, second_scores) = split_scored(first), split_scored(second)
    labels = check_correct(correct, len(first))
    both = first_scored & second_scored
    if not both.any():
        raise MetricInputError("No step is scored by both estimators, so they cannot be compared.")
    pair = (
        SortedSteps(first_scores[both[first_scored]], labels[both]),
        SortedSteps(second_scores[both[second_scored]], labels[both]),
    )
    point = _difference(pair, np.ones((1, int(both.sum()))))
    chunks = [
        _difference(pair, weights[:, both])
        for weights in _episode_weights(episode_ids, len(first), resamples, seed)
    ]
    several = len({episode for episode, used in zip(episode_ids, both, strict=True) if used}) > 1
    return {
        name: PairedDifference(
            difference=None if np.isnan(point[name][0]) else float(point[name][0]),
            ci=_interval([chunk[name] for chunk in chunks], level) if several else None,
        )
        for name in METRIC_NAMES
    }


def _difference(pair: tuple[SortedSteps, SortedSteps], weights: FloatArray) -> dict[str, FloatArray]:
    first, second = (WeightedMetrics(steps, weights).all() for steps in pair)
    return {name: first[name] - second[name] for name in METRIC_NAMES}


def _episode_weights(
    episode_ids: Sequence[str], n_steps: int, resamples: int, seed: int
) -> Iterator[FloatArray]:
    """Yields weights of shape (some resamples, n_steps), few enough at once to fit into memory."""
    if len(episode_ids) != n_steps:
        raise MetricInputError(f"There are {n_steps} confidences and {len(episode_ids)} episode ids.")
    if resamples < 1:
        raise ConfigurationError(f"resamples must be at least 1, got {resamples}.")
    # Numbered by first appearance, so that other names for the same episodes give the same intervals.
    number_by_id: dict[str, int] = {}
    numbers = np.array([number_by_id.setdefault(name, len(number_by_id)) for name in episode_ids])
    chances = np.full(len(number_by_id), 1.0 / len(number_by_id))
    rng = np.random.default_rng(seed)
    rows_at_once = max(1, _CELLS_AT_ONCE // n_steps)
    for start in range(0, resamples, rows_at_once):
        rows = min(rows_at_once, resamples - start)
        draws = rng.multinomial(len(number_by_id), chances, size=rows)
        yield draws[:, numbers].astype(np.float64)


def _interval(chunks: list[FloatArray], level: float) -> Interval | None:
    if not 0.0 < level < 1.0:
        raise ConfigurationError(f"level must lie between 0 and 1, got {level!r}.")
    values = np.concatenate(chunks)
    defined = values[~np.isnan(values)]
    if defined.size < _MIN_DEFINED_SHARE * values.size:
        return None
    low, high = np.quantile(defined, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)
