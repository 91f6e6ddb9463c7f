"""From a rollout's rows to the table, the JSON result, and the files of a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ceb_gym.evaluation.curves import Curve, curve_over_stream, save_curve
from ceb_gym.evaluation.gaps import GAP_METRICS, Gap, gap_between, gap_json, verdict_of
from ceb_gym.evaluation.given import GIVEN
from ceb_gym.evaluation.metrics import MetricSummary, summarize
from ceb_gym.evaluation.reliability import has_matplotlib, save_reliability_diagram
from ceb_gym.evaluation.rollout import RAW, RolloutResult, StepRow

CURVE_FILE = "curve.png"
REPORT_FILES = (
    "report.md",
    "results.json",
    "steps.jsonl",
    "reliability.png",
    "reliability_later_steps.png",
    CURVE_FILE,
)
PARTS = {"all": "All steps", "later_steps": "Steps after the first of each episode"}
COLUMNS = ("steps", "pos.", "ECE", "Brier", "skill", "AUC", "scored")
YARDSTICK = "counts"
GAP_TITLE = f"Critic minus {YARDSTICK}, on the same steps"
GAP_COLUMNS = ("steps", "metric", "difference", "the critic is")
_SHOWN_IN_CURVE = ("critic", RAW, "base_rate", YARDSTICK)


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
        gaps: By part, the critic's differences to the counting table; None where no step has both scores, and
            empty where there is no such table.
        curve: Metrics over the run; None without any labelled step.
    """

    summaries: Mapping[str, Mapping[str, MetricSummary]]
    bank_labels: str
    evaluated_by: str
    n_unlabelled: int
    run: Mapping[str, float | int | None]
    first_revision: int
    gaps: Mapping[str, Gap | None]
    curve: Curve | None

    def to_json(self) -> dict[str, Any]:
        """Returns what `ceb run --json` writes: critic, base_rate_critic, counts_critic, bank_labels, ..."""
        names = {name: name if name in ("critic", RAW) else f"{name}_critic" for name in self.summaries}
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
            f"gap_to_{YARDSTICK}": {part: gap_json(gap) for part, gap in self.gaps.items()},
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
    own_labels = result.labels_from != "reference"
    evaluated_by = labeler if own_labels else f"reference labels ({label_rule or 'annotated'})"
    return Evaluation(
        summaries={
            name: {part: _summary(name, rows, groups, resamples, seed) for part, rows in parts.items()}
            for name in names
        },
        bank_labels="oracle" if own_labels or labeler in (label_rule, GIVEN) else labeler,
        evaluated_by=evaluated_by,
        n_unlabelled=sum(row.executed and row.label is None for row in result.steps),
        run=_achieved(result),
        first_revision=result.steps[0].bank_revision if result.steps else 0,
        gaps={
            part: _gap(rows, groups, resamples, seed) for part, rows in parts.items() if YARDSTICK in names
        },
        curve=_curve(labelled, names, len(result.episodes)) if labelled else None,
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


def _gap(rows: Sequence[StepRow], groups: Mapping[int, str], resamples: int, seed: int) -> Gap | None:
    if not rows:
        return None
    return gap_between(
        [row.confidence["critic"] for row in rows],
        [row.confidence[YARDSTICK] for row in rows],
        [bool(row.label) for row in rows],
        [groups[row.episode] for row in rows],
        resamples=resamples,
        seed=seed,
    )


def _curve(rows: Sequence[StepRow], names: Sequence[str], n_episodes: int) -> Curve:
    return curve_over_stream(
        {name: [row.confidence[name] for row in rows] for name in names},
        [bool(row.label) for row in rows],
        [row.episode for row in rows],
        n_episodes,
    )


def _summary(
    name: str, rows: Sequence[StepRow], groups: Mapping[int, str], resamples: int, seed: int
) -> MetricSummary:
    if not rows:
        return MetricSummary.of_no_steps()
    return summarize(
        [row.confidence[name] for row in rows],
        [bool(row.label) for row in rows],
        [groups[row.episode] for row in rows],
        resamples=resamples,
        seed=seed,
    )


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
    return {"critic": critic_name, RAW: f"{critic_name} (raw)"}.get(name, name)


def gap_rows(evaluation: Evaluation) -> list[tuple[str, ...]]:
    """Cells of the table of differences, in the order of `GAP_COLUMNS`; none without a gap."""
    return [
        (
            "all" if part == "all" else "later",
            shown,
            _number(gap[name].difference, gap[name].ci),
            verdict_of(name, gap[name]),
        )
        for part, gap in evaluation.gaps.items()
        if gap is not None
        for name, shown in GAP_METRICS.items()
    ]


def _number(value: float | None, interval: tuple[float, float] | None = None) -> str:
    if value is None:
        return "-"
    text = f"{value:.3f}"
    return text if interval is None else f"{text} [{interval[0]:.3f}, {interval[1]:.3f}]"


def step_rows_json(result: RolloutResult) -> str:
    """One JSON line per judged step."""
    return "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in result.steps)


def write_report(
    folder: Path, result: RolloutResult, evaluation: Evaluation, critic_name: str, settings: Mapping[str, Any]
) -> list[Path]:
    """Writes report.md, results.json, steps.jsonl and the figures; returns their paths.

    Without matplotlib there are no figures, and the report says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    steps, results = folder / "steps.jsonl", folder / "results.json"
    steps.write_text(step_rows_json(result), encoding="utf-8")
    results.write_text(result_json(evaluation, settings), encoding="utf-8")
    title = f"{critic_name} on {settings.get('source', 'this run')}"
    diagrams = _write_diagrams(folder, result, title) if has_matplotlib() else []
    if evaluation.curve is not None and has_matplotlib():
        names = {name: shown_name(name, critic_name) for name in evaluation.summaries}
        drawn = {name: names[name] for name in _SHOWN_IN_CURVE if name in names}
        save_curve(folder / CURVE_FILE, evaluation.curve, title=title, names=drawn)
        diagrams.append(folder / CURVE_FILE)
    report = folder / "report.md"
    report.write_text(_markdown(evaluation, critic_name, settings, diagrams), encoding="utf-8")
    return [report, results, steps, *diagrams]


def _write_diagrams(folder: Path, result: RolloutResult, title: str) -> list[Path]:
    """One diagram for all steps and one for those after the first, where any of them is scored."""
    written = []
    for part, suffix, first_index in (("all steps", "", 0), ("steps after the first", "_later_steps", 1)):
        rows = [row for row in result.steps if row.label is not None and row.step_index >= first_index]
        if any(row.confidence["critic"] is not None for row in rows):
            path = folder / f"reliability{suffix}.png"
            save_reliability_diagram(
                path,
                [row.confidence["critic"] for row in rows],
                [bool(row.label) for row in rows],
                title=f"{title}, {part}",
            )
            written.append(path)
    return written


def result_json(evaluation: Evaluation, settings: Mapping[str, Any]) -> str:
    """The result as indented JSON with the settings that made it; the same run gives the same bytes."""
    return json.dumps({**evaluation.to_json(), "settings": dict(settings)}, indent=2) + "\n"


def _markdown(
    evaluation: Evaluation, critic_name: str, settings: Mapping[str, Any], diagrams: Sequence[Path]
) -> str:
    header = ("estimator", *COLUMNS)
    tables: list[str] = []
    for part, title in PARTS.items():
        tables += [f"## {title}", "", *_table(header, table_rows(evaluation, critic_name, part)), ""]
    if gaps := gap_rows(evaluation):
        tables += [f"## {GAP_TITLE}", "", *_table(GAP_COLUMNS, gaps), ""]
    lines = [
        f"# Confidence of {critic_name} on {settings.get('source', 'this run')}",
        "",
        *(f"{line}\n" for line in notes(evaluation)),
        *tables,
        "Intervals: 95 %, from resampling episodes. Skill: 1 - Brier / Brier of the positive rate.",
        "",
    ]
    for path in diagrams:
        kind = "Curve over the stream" if path.name == CURVE_FILE else "Reliability diagram"
        lines += [f"![{kind} of {critic_name}]({path.name})\n"]
    if not diagrams:
        lines += ["No figures: they need scored, labelled steps and `pip install 'ceb-gym[plots]'`.\n"]
    lines += ["## Settings", ""]
    lines += [f"- {name}: `{value}`" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)] + [
        "| " + " | ".join(row) + " |" for row in rows
    ]


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
