"""From a rollout's rows to the table, the JSON result, and the files of a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ceb_gym.evaluation.metrics import MetricSummary, summarize
from ceb_gym.evaluation.reliability import has_matplotlib, save_reliability_diagram
from ceb_gym.evaluation.rollout import RolloutResult, StepRow

REPORT_FILES = ("report.md", "results.json", "steps.jsonl", "reliability.png", "reliability_later_steps.png")
PARTS = {"all": "All steps", "later_steps": "Steps after the first of each episode"}
COLUMNS = ("steps", "pos.", "ECE", "Brier", "skill", "AUC", "scored")


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
    """

    summaries: Mapping[str, Mapping[str, MetricSummary]]
    bank_labels: str
    evaluated_by: str
    n_unlabelled: int
    run: Mapping[str, float | int | None]
    first_revision: int

    def to_json(self) -> dict[str, Any]:
        """Returns what `ceb run --json` writes: critic, base_rate_critic, counts_critic, bank_labels."""
        names = {name: name if name == "critic" else f"{name}_critic" for name in self.summaries}
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
    own_labels = result.labels_from != "reference"
    evaluated_by = labeler if own_labels else f"reference labels ({label_rule or 'annotated'})"
    return Evaluation(
        summaries={
            name: {part: _summary(name, rows, resamples, seed) for part, rows in parts.items()}
            for name in names
        },
        bank_labels="oracle" if own_labels or labeler == label_rule else labeler,
        evaluated_by=evaluated_by,
        n_unlabelled=sum(row.executed and row.label is None for row in result.steps),
        run=_achieved(result),
        first_revision=result.steps[0].bank_revision if result.steps else 0,
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


def _summary(name: str, rows: Sequence[StepRow], resamples: int, seed: int) -> MetricSummary:
    if not rows:
        return MetricSummary.of_no_steps()
    return summarize(
        [row.confidence[name] for row in rows],
        [bool(row.label) for row in rows],
        [str(row.episode) for row in rows],
        resamples=resamples,
        seed=seed,
    )


def table_rows(evaluation: Evaluation, critic_name: str, part: str) -> list[tuple[str, ...]]:
    """Cells of the table of one part, a row per estimator: its name, then the columns of `COLUMNS`."""
    rows: list[tuple[str, ...]] = []
    for name, parts in evaluation.summaries.items():
        summary = parts[part]
        shown = critic_name if name == "critic" else name
        cells = (
            str(summary.n_steps),
            _number(summary.base_rate),
            _number(summary.ece, summary.ci.get("ece")),
            _number(summary.brier),
            _number(summary.brier_skill, summary.ci.get("brier_skill")),
            _number(summary.auc, summary.ci.get("auc")),
            "-" if summary.coverage is None else f"{summary.coverage:.0%}",
        )
        rows.append((shown, *cells))
    return rows


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
    """Writes report.md, results.json, steps.jsonl and the reliability diagrams; returns their paths.

    Without matplotlib there are no diagrams, and the report says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    steps, results = folder / "steps.jsonl", folder / "results.json"
    steps.write_text(step_rows_json(result), encoding="utf-8")
    results.write_text(result_json(evaluation, settings), encoding="utf-8")
    title = f"{critic_name} on {settings.get('source', 'this run')}"
    diagrams = _write_diagrams(folder, result, title) if has_matplotlib() else []
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
        tables += [f"## {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        tables += ["| " + " | ".join(row) + " |" for row in table_rows(evaluation, critic_name, part)]
        tables += [""]
    lines = [
        f"# Confidence of {critic_name} on {settings.get('source', 'this run')}",
        "",
        *(f"{line}\n" for line in notes(evaluation)),
        *tables,
        "Intervals: 95 %, from resampling episodes. Skill: 1 - Brier / Brier of the positive rate.",
        "",
    ]
    lines += [f"![Reliability diagram of {critic_name}]({path.name})\n" for path in diagrams]
    if not diagrams:
        lines += [
            "No reliability diagram: it needs scored, labelled steps and `pip install 'ceb-gym[plots]'`.\n"
        ]
    lines += ["## Settings", ""]
    lines += [f"- {name}: `{value}`" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


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
            "The bank learned from the same rule that it is evaluated by, so this is an upper bound and not "
            "the method of the paper, which learns from hindsight votes."
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
