"""Rows of the tables and the sentences above them, as the terminal and the report show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ceb_gym.evaluation.evaluate import Evaluation
from ceb_gym.evaluation.feature_weights import REPEATS, FeatureWeights, Weight
from ceb_gym.evaluation.gaps import GAP_METRICS, Gap, verdict_of
from ceb_gym.evaluation.rollout import RAW
from ceb_gym.evaluation.twin import TWIN

PARTS: Final = {"all": "All steps", "later_steps": "Steps after the first of each episode"}
COLUMNS: Final = ("steps", "pos.", "ECE", "Brier", "skill", "AUC", "scored")
GAP_COLUMNS: Final = ("steps", "metric", "difference", "the critic is")
WEIGHT_COLUMNS: Final = ("all steps", "later steps")
STRONGEST: Final = 10
_TWIN_SHOWN = "precedent (no precedents)"
_OVER = {"all": "over all steps", "later_steps": "over the later steps"}
_OF_ITS_OWN_AGENT = frozenset({"pro", "verbalized"})  # they score what their own agent chose


@dataclass(frozen=True, slots=True)
class GapTable:
    """The critic's differences to one other estimator.

    Attributes:
        title: Says which two are compared.
        rows: Cells in the order of `GAP_COLUMNS`.
        sentence: What they say plainly; "" where the table says it.
    """

    title: str
    rows: list[tuple[str, ...]]
    sentence: str


def table_rows(evaluation: Evaluation, critic_name: str, part: str) -> list[tuple[str, ...]]:
    """Cells of the table of one part, a row per estimator: its name, then the columns of `COLUMNS`."""
    rows: list[tuple[str, ...]] = []
    for name, parts in evaluation.summaries.items():
        summary = parts[part]
        cells = (
            str(summary.n_steps),
            _number(summary.base_rate),
            _number(summary.ece, summary.ci.get("ece")),
            _number(summary.brier),
            _number(summary.brier_skill, summary.ci.get("brier_skill")),
            _number(summary.auc, summary.ci.get("auc")),
            "-" if summary.coverage is None else f"{summary.coverage:.0%}",
        )
        rows.append((shown_name(name, critic_name), *cells))
    return rows


def shown_name(name: str, critic_name: str) -> str:
    """What an estimator is called in tables."""
    shown = {"critic": critic_name, RAW: f"{critic_name} (raw)", TWIN: _TWIN_SHOWN}.get(name, name)
    return f"{shown} (not paired)" if shown.partition("?")[0] in _OF_ITS_OWN_AGENT else shown


def gap_tables(evaluation: Evaluation) -> list[GapTable]:
    """The tables of differences that have any row."""
    tables = []
    for other, gaps in evaluation.gaps.items():
        raw = " before recalibration" if other == TWIN and RAW in evaluation.summaries else ""
        title = f"Critic{raw} minus {shown_name(other, '')}, on the same steps"
        if rows := _gap_rows(gaps):
            tables.append(GapTable(title, rows, _precedents_sentence(gaps) if other == TWIN else ""))
    return tables


def _gap_rows(gaps: Mapping[str, Gap | None]) -> list[tuple[str, ...]]:
    return [
        (
            "all" if part == "all" else "later",
            shown,
            _number(gap[name].difference, gap[name].ci),
            verdict_of(name, gap[name]),
        )
        for part, gap in gaps.items()
        if gap is not None
        for name, shown in GAP_METRICS.items()
    ]


def _precedents_sentence(gaps: Mapping[str, Gap | None]) -> str:
    """Says where precedents were of no use, by the proper score; "" where none can be said to be."""
    verdicts = {part: verdict_of("brier", gap["brier"]) for part, gap in gaps.items() if gap is not None}
    findings = []
    for verdict, finding in (("worse", "made it worse"), ("no difference shown", "did not help")):
        if places := [_OVER[part] for part, found in verdicts.items() if found == verdict]:
            findings.append(f"{finding} {' and '.join(places)}")
    if not findings:
        return ""
    return f"Precedents {', and '.join(findings)} here (Brier score, against the same critic without them)."


def weight_rows(weights: FeatureWeights) -> list[tuple[str, ...]]:
    """Cells of the table of weights: group or feature, then the columns of `WEIGHT_COLUMNS`."""
    rows = [(f"all of {name}", *_weight_cells(parts)) for name, parts in weights.groups.items()]
    return rows + [(name, *_weight_cells(weights.features[name])) for name in weights.strongest(STRONGEST)]


def weight_notes(weights: FeatureWeights) -> list[str]:
    """What a reader must know about the weights."""
    lines = [
        f"Increase of the Brier score on {weights.n_judged} records of the newest quarter of the run "
        f"({weights.n_later} after the first step of an episode) when a feature's values are mixed up among "
        f"them: mean and standard deviation of {REPEATS} times. The critic learned from the "
        f"{weights.n_learned} records before. Labels are the bank's pseudo-labels. Groups first, then the "
        f"{STRONGEST} strongest features.",
    ]
    if not weights.uses_precedents:
        lines.append("The critic looked at no precedents here, so these weigh 0.")
    return lines


def _weight_cells(parts: Mapping[str, Weight]) -> list[str]:
    found = (parts.get(part) for part in PARTS)
    return ["-" if weight is None else f"{weight.mean:.5f} ± {weight.deviation:.5f}" for weight in found]


def _number(value: float | None, interval: tuple[float, float] | None = None) -> str:
    if value is None:
        return "-"
    text = f"{value:.3f}"
    return text if interval is None else f"{text} [{interval[0]:.3f}, {interval[1]:.3f}]"


def notes(evaluation: Evaluation) -> list[str]:
    """What a reader must know before the numbers."""
    run = evaluation.run
    achieved = f"{run['n_episodes']} episodes, {run['n_executed']} steps executed, {run['n_deferred']} not"
    if run["mean_return"] is not None:
        achieved += f"; mean return {run['mean_return']:.3f}"
    if run["success_rate"] is not None:
        achieved += f", success rate {run['success_rate']:.3f}"
    lines = [
        f"{achieved}.",
        f"bank_labels: {evaluation.bank_labels}; evaluated by: {evaluation.evaluated_by}.",
    ]
    if evaluation.bank_labels == "oracle":
        lines.append(
            "The bank learned from the labels that it is evaluated by, so this is an upper bound and not the "
            "method of the paper, which learns from hindsight votes."
        )
    if evaluation.first_revision:
        lines.append(
            f"The bank was at revision {evaluation.first_revision} before the first episode: if it has seen "
            "these episodes before, it knows the answers."
        )
    if evaluation.n_unlabelled:
        lines.append(f"{evaluation.n_unlabelled} executed steps have no label and are left out.")
    if run["n_deferred"]:
        lines.append("Only executed steps can be labelled, so the metrics do not cover what was deferred.")
    return lines
