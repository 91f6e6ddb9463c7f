"""The gap to the counting table, which knows nothing of the task: what any use of a bank must beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ceb_gym.errors import MetricInputError
from ceb_gym.evaluation.bootstrap import PairedDifference, paired_differences

GAP_METRICS: Final = {"ece": "ECE", "brier": "Brier", "brier_skill": "skill", "auc": "AUC"}
LOWER_IS_BETTER: Final = frozenset({"ece", "brier"})

Gap = Mapping[str, PairedDifference]


def gap_between(
    first: Sequence[float | None],
    second: Sequence[float | None],
    correct: Sequence[bool],
    episode_ids: Sequence[str],
    *,
    resamples: int,
    seed: int,
) -> Gap | None:
    """Differences of the first estimator to the second on the steps that both scored.

    Args:
        first: Shape (n,), confidences; None for unscored steps.
        second: Shape (n,), those of the other.
        correct: Shape (n,), whether each step was productive.
        episode_ids: Shape (n,), the episode of each step: episodes are resampled, the same for both.
        resamples: How often; 0 for no intervals.
        seed: For the resampling.

    Returns:
        By metric name; None where no step is scored by both.
    """
    try:
        found = paired_differences(
            first, second, correct, episode_ids, resamples=max(1, resamples), seed=seed
        )
    except MetricInputError:
        if any(a is not None and b is not None for a, b in zip(first, second, strict=True)):
            raise
        return None
    return {
        name: PairedDifference(found[name].difference, found[name].ci if resamples else None)
        for name in GAP_METRICS
    }


def gap_json(gap: Gap | None) -> dict[str, Any] | None:
    """Returns the differences as JSON can hold them."""
    if gap is None:
        return None
    return {
        name: {"difference": item.difference, "ci": None if item.ci is None else list(item.ci)}
        for name, item in gap.items()
    }


def verdict_of(name: str, item: PairedDifference) -> str:
    """Says in a word whether the first estimator is better: only an interval without 0 tells."""
    if item.ci is None:
        return "-"
    low, high = item.ci
    if low <= 0.0 <= high:
        return "no difference shown"
    return "better" if (high < 0.0) == (name in LOWER_IS_BETTER) else "worse"
