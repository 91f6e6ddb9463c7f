"""What `ceb bank` prints: tables for people, plain data for `--json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ceb_gym.bank.maintenance import Intent, ScopeStats
from ceb_gym.text import shorten
from ceb_gym.types import Precedents, Record, Trajectory

_CELL_CHARS = 90


def print_json(content: Any) -> None:
    """Prints one line of JSON, in ASCII because stored text may hold terminal commands."""
    print(json.dumps(content))


def harmless(text: str) -> str:
    """Returns the text with control characters spelled out: agents' text could steer a terminal."""
    return "".join(
        char if char in "\n\t" or not (ord(char) < 32 or 127 <= ord(char) < 160) else f"\\x{ord(char):02x}"
        for char in text
    )


def cell(text: str | None) -> Text:
    """Returns a text for one line of a table."""
    if text is None:
        return Text("-", style="dim")
    line = " ".join(shorten(text, 4 * _CELL_CHARS).split())
    return Text(harmless(line if len(line) <= _CELL_CHARS else f"{line[: _CELL_CHARS - 3]}..."))


def number(value: float | None) -> str:
    """Returns a share or score with three places."""
    return "-" if value is None else f"{value:.3f}"


def time_text(seconds: float) -> str:
    """Returns a time in UTC; years that no calendar holds as seconds."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s"


def stats_table(all_stats: Sequence[ScopeStats]) -> Table:
    """Returns a row for each scope."""
    table = Table(title="Scopes")
    table.add_column("scope")
    for name in (
        "revision",
        "records",
        "productive",
        "vote margin",
        "removed",
        "labelled",
        "pending",
        "held",
    ):
        table.add_column(name, justify="right")
    table.add_column("open", justify="right")
    for stats in all_stats:
        table.add_row(
            cell(stats.scope),
            f"{stats.revision:,}",
            f"{stats.records:,}",
            number(stats.positive_share),
            number(stats.mean_vote_margin),
            f"{stats.removed:,}",
            *(f"{stats.trajectories.get(status, 0):,}" for status in ("labelled", "pending", "held", "open")),
        )
    return table


def record_table(title: str, records: Iterable[Record]) -> Table:
    """Returns a row for each record."""
    table = Table(title=title)
    for name in ("record", "scope", "label", "votes", "confidence", "state", "action", "outcome"):
        table.add_column(name)
    for record in records:
        table.add_row(
            cell(record.record_id),
            cell(record.scope),
            "productive" if record.label else "unproductive",
            f"{record.vote_share:.2f} of {record.votes}" if record.votes else "-",
            number(record.confidence),
            cell(record.state),
            cell(record.action),
            cell(record.outcome),
        )
    return table


def intent_table(intents: Sequence[Intent]) -> Table:
    """Returns a row for each action that was about to run when its episode was cut off."""
    table = Table(title="Was about to be executed when the episode was cut off (or is running now)")
    for name in ("time (UTC)", "episode", "step", "scope", "state", "action"):
        table.add_column(name)
    for intent in intents:
        table.add_row(
            time_text(intent.created_at),
            cell(intent.episode_id),
            str(intent.step_index),
            cell(intent.scope),
            cell(intent.state),
            cell(intent.action),
        )
    return table


def precedent_table(title: str, precedents: Precedents) -> Table:
    """Returns the productive, then the unproductive records, best first."""
    table = Table(title=title)
    table.add_column("similarity", justify="right")
    for name in ("label", "record", "task", "state", "action", "outcome"):
        table.add_column(name)
    for precedent in (*precedents.productive, *precedents.unproductive):
        record = precedent.record
        table.add_row(
            number(precedent.similarity),
            "productive" if record.label else "unproductive",
            *map(cell, (record.record_id, record.task, record.state, record.action, record.outcome)),
        )
    return table


def print_record(console: Console, record: Record) -> None:
    """Prints every field of a record in full."""
    for name, value in asdict(record).items():
        console.print(Text(f"{name}: ", style="bold"), Text(harmless(str(value))), sep="")


def episode_table(trajectory: Trajectory) -> Table:
    """Returns a row for each step of an episode."""
    title = f"Episode {trajectory.episode_id} of {trajectory.env_id}, {trajectory.ending}: {trajectory.task}"
    table = Table(title=cell(title))
    for name in ("step", "decision", "confidence", "reward", "state", "action", "outcome"):
        table.add_column(name)
    for step in trajectory.steps:
        table.add_row(
            str(step.index),
            step.decision if step.executed else f"{step.decision} (not executed)",
            number(step.confidence),
            "-" if step.reward is None else f"{step.reward:g}",
            cell(step.state),
            cell(step.action),
            cell(step.outcome),
        )
    return table
