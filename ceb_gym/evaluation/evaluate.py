"""From a rollout's rows to the metrics of all estimators, and the critic's gaps to two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from ceb_gym.evaluation.curves import Curve, curve_over_stream
from ceb_gym.evaluation.gaps import Gap, gap_between, gap_json
from ceb_gym.evaluation.given import GIVEN
from ceb_gym.evaluation.metrics import MetricSummary, summarize
from ceb_gym.evaluation.rollout import RAW, RolloutResult, StepRow
from ceb_gym.evaluation.twin import TWIN

YARDSTICK: Final = "counts"
_OWN_NAMES = ("critic", RAW, TWIN)  # what JSON calls without "_critic" behind it


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of each estimator, on all labelled steps and on those after the first of each episode.

    Attributes:
        summaries: By estimator name and part ("all", "later_steps").
        bank_labels: "oracle" where the bank learned from the rule that it is evaluated by, else the
            labeler's name.
        evaluated_by: Which labels the metrics use.
        n_unlabelled: Executed steps that no metric could use, since they have no label.
        run: What the agent achieved: number of episodes, mean return, success rate (None where the
            environment states no success), steps executed, proposals deferred.
        first_revision: The scope's revision at the first reset: above 0, the bank was not empty.
        gaps: The critic's differences to the counting table and to its twin without precedents, by the
            other's name and by part; None where no step has both scores. Only for estimators that the run
            had. The twin is never recalibrated, so the gap to it is that of the critic's raw scores.
        curve: Metrics over the run; None without any labelled step.
    """

    summaries: Mapping[str, Mapping[str, MetricSummary]]
    bank_labels: str
    evaluated_by: str
    n_unlabelled: int
    run: Mapping[str, float | int | None]
    first_revision: int
    gaps: Mapping[str, Mapping[str, Gap | None]]
    curve: Curve | None

    def to_json(self) -> dict[str, Any]:
        """Returns what `ceb run --json` writes: critic, base_rate_critic, counts_critic, bank_labels, ..."""
        names = {name: name if name in _OWN_NAMES else f"{name}_critic" for name in self.summaries}
        gaps = {YARDSTICK: {}, **self.gaps}
        return {
            **{
                names[name]: {part: summary.to_json() for part, summary in parts.items()}
                for name, parts in self.summaries.items()
            },
            "bank_labels": self.bank_labels,
            "evaluated_by": self.evaluated_by,
            "n_unlabelled": self.n_unlabelled,
            "run": dict(self.run),
            "first_revision": self.first_revision,
            **{
                f"gap_to_{other}": {part: gap_json(gap) for part, gap in parts.items()}
                for other, parts in gaps.items()
            },
            "curve": None if self.curve is None else self.curve.to_json(),
        }


def evaluate_rollout(
    result: RolloutResult,
    *,
    labeler: str,
    label_rule: str | None,
    resamples: int = 1_000,
    seed: int = 0,
) -> Evaluation:
    """Computes the metrics of all estimators of a rollout.

    Args:
        result: Has a label on every step that counts.
        labeler: Name of the labeler whose labels are in the bank.
        label_rule: Rule behind the reference labels, where there are any.
        resamples: Of the episodes, for the intervals.
        seed: For the resampling.
    """
    labelled = [row for row in result.steps if row.label is not None]
    names = list(result.steps[0].confidence) if result.steps else ["critic"]
    parts = {"all": labelled, "later_steps": [row for row in labelled if row.step_index > 0]}
    groups = {episode.episode: episode.source or f"episode {episode.episode}" for episode in result.episodes}
    sampling = _Sampling(groups, resamples, seed)
    own_labels = result.labels_from != "reference"
    evaluated_by = labeler if own_labels else f"reference labels ({label_rule or 'annotated'})"
    return Evaluation(
        summaries={
            name: {part: sampling.summary(name, rows) for part, rows in parts.items()} for name in names
        },
        bank_labels="oracle" if own_labels or labeler in (label_rule, GIVEN) else labeler,
        evaluated_by=evaluated_by,
        n_unlabelled=sum(row.executed and row.label is None for row in result.steps),
        run=_achieved(result),
        first_revision=result.steps[0].bank_revision if result.steps else 0,
        gaps={
            other: {part: sampling.gap(own, other, rows) for part, rows in parts.items()}
            for own, other in (("critic", YARDSTICK), (RAW if RAW in names else "critic", TWIN))
            if other in names
        },
        curve=_curve(labelled, names, len(result.episodes)) if labelled else None,
    )


@dataclass(frozen=True, slots=True)
class _Sampling:
    """Metrics of rows with intervals from drawing the same groups of episodes again.

    Attributes:
        groups: What each episode is drawn together with.
        resamples: How often; 0 for no intervals.
        seed: For the drawing.
    """

    groups: Mapping[int, str]
    resamples: int
    seed: int

    def summary(self, name: str, rows: Sequence[StepRow]) -> MetricSummary:
        if not rows:
            return MetricSummary.of_no_steps()
        return summarize(
            [row.confidence[name] for row in rows],
            [bool(row.label) for row in rows],
            [self.groups[row.episode] for row in rows],
            resamples=self.resamples,
            seed=self.seed,
        )

    def gap(self, own: str, other: str, rows: Sequence[StepRow]) -> Gap | None:
        if not rows:
            return None
        return gap_between(
            [row.confidence[own] for row in rows],
            [row.confidence[other] for row in rows],
            [bool(row.label) for row in rows],
            [self.groups[row.episode] for row in rows],
            resamples=self.resamples,
            seed=self.seed,
        )


def _achieved(result: RolloutResult) -> dict[str, float | int | None]:
    returns = [episode.total_reward for episode in result.episodes]
    verdicts = [episode.success for episode in result.episodes if episode.success is not None]
    return {
        "n_episodes": len(result.episodes),
        "mean_return": fmean(returns) if returns else None,
        "success_rate": fmean(verdicts) if verdicts else None,
        "n_executed": sum(episode.n_executed for episode in result.episodes),
        "n_deferred": sum(not row.executed for row in result.steps),
    }


def _curve(rows: Sequence[StepRow], names: Sequence[str], n_episodes: int) -> Curve:
    return curve_over_stream(
        {name: [row.confidence[name] for row in rows] for name in names},
        [bool(row.label) for row in rows],
        [row.episode for row in rows],
        n_episodes,
    )
