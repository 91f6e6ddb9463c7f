"""The JSON result and the files of a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ceb_gym.evaluation.curves import save_curve
from ceb_gym.evaluation.evaluate import YARDSTICK, Evaluation
from ceb_gym.evaluation.feature_weights import FeatureWeights
from ceb_gym.evaluation.reliability import has_matplotlib, save_reliability_diagram
from ceb_gym.evaluation.rollout import RAW, RolloutResult
from ceb_gym.evaluation.tables import (
    COLUMNS,
    GAP_COLUMNS,
    PARTS,
    WEIGHT_COLUMNS,
    gap_tables,
    notes,
    shown_name,
    table_rows,
    weight_notes,
    weight_rows,
)
from ceb_gym.evaluation.twin import TWIN

CURVE_FILE = "curve.png"
REPORT_FILES = (
    "report.md",
    "results.json",
    "steps.jsonl",
    "reliability.png",
    "reliability_later_steps.png",
    CURVE_FILE,
)
_SHOWN_IN_CURVE = ("critic", RAW, TWIN, "base_rate", YARDSTICK)

Weights = FeatureWeights | str | None


def step_rows_json(result: RolloutResult) -> str:
    """One JSON line per judged step."""
    return "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in result.steps)


def write_report(
    folder: Path,
    result: RolloutResult,
    evaluation: Evaluation,
    critic_name: str,
    settings: Mapping[str, Any],
    weights: Weights = None,
) -> list[Path]:
    """Writes report.md, results.json, steps.jsonl and the figures; returns their paths.

    Without matplotlib there are no figures, and the report says so.

    Args:
        folder: Is made where it is missing.
        result: The rows.
        evaluation: Their metrics.
        critic_name: What the critic is called.
        settings: What made the run.
        weights: Of the critic's features, or a sentence why there are none; None for critics without.
    """
    folder.mkdir(parents=True, exist_ok=True)
    steps, results = folder / "steps.jsonl", folder / "results.json"
    steps.write_text(step_rows_json(result), encoding="utf-8")
    results.write_text(result_json(evaluation, settings, weights), encoding="utf-8")
    title = f"{critic_name} on {settings.get('source', 'this run')}"
    diagrams = _write_diagrams(folder, result, title) if has_matplotlib() else []
    if evaluation.curve is not None and has_matplotlib():
        names = {name: shown_name(name, critic_name) for name in evaluation.summaries}
        drawn = {name: names[name] for name in _SHOWN_IN_CURVE if name in names}
        save_curve(folder / CURVE_FILE, evaluation.curve, title=title, names=drawn)
        diagrams.append(folder / CURVE_FILE)
    report = folder / "report.md"
    report.write_text(_markdown(evaluation, critic_name, settings, diagrams, weights), encoding="utf-8")
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


def result_json(evaluation: Evaluation, settings: Mapping[str, Any], weights: Weights = None) -> str:
    """The result as indented JSON with the settings that made it; the same run gives the same bytes."""
    found = evaluation.to_json()
    if weights is not None:
        found["feature_weights"] = {"left_out": weights} if isinstance(weights, str) else weights.to_json()
    return json.dumps({**found, "settings": dict(settings)}, indent=2) + "\n"


def _markdown(
    evaluation: Evaluation,
    critic_name: str,
    settings: Mapping[str, Any],
    diagrams: Sequence[Path],
    weights: Weights,
) -> str:
    header = ("estimator", *COLUMNS)
    tables: list[str] = []
    for part, title in PARTS.items():
        tables += [f"## {title}", "", *_table(header, table_rows(evaluation, critic_name, part)), ""]
    for gap in gap_tables(evaluation):
        tables += [f"## {gap.title}", "", *_table(GAP_COLUMNS, gap.rows), ""]
        tables += [gap.sentence, ""] if gap.sentence else []
    lines = [
        f"# Confidence of {critic_name} on {settings.get('source', 'this run')}",
        "",
        *(f"{line}\n" for line in notes(evaluation)),
        *tables,
        "Intervals: 95 %, from resampling episodes. Skill: 1 - Brier / Brier of the positive rate.",
        "",
    ]
    lines += [*_figures(diagrams, critic_name), *_weights_lines(weights), "## Settings", ""]
    lines += [f"- {name}: `{value}`" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _figures(diagrams: Sequence[Path], critic_name: str) -> list[str]:
    if not diagrams:
        return ["No figures: they need scored, labelled steps and `pip install 'ceb-gym[plots]'`.\n"]
    kinds = [
        "Curve over the stream" if path.name == CURVE_FILE else "Reliability diagram" for path in diagrams
    ]
    return [f"![{kind} of {critic_name}]({path.name})\n" for kind, path in zip(kinds, diagrams, strict=True)]


def _weights_lines(weights: Weights) -> list[str]:
    if weights is None:
        return []
    title = ["## Feature weights", ""]
    if isinstance(weights, str):
        return [*title, f"Left out. {weights}", ""]
    said = [f"{line}\n" for line in weight_notes(weights)]
    return [*title, *said, *_table(("features", *WEIGHT_COLUMNS), weight_rows(weights)), ""]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)] + [
        "| " + " | ".join(row) + " |" for row in rows
    ]
