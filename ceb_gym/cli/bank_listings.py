"""What `ceb bank` prints: listings for people, plain data for `--json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from ceb_gym.bank.maintenance import Intent, ScopeStats
from ceb_gym.text import harmless, shorten
from ceb_gym.types import Precedents, Record, Trajectory

_CELL_CHARS = 200


def print_json(content: Any) -> None:
    """Prints one line of JSON, in ASCII because stored text may hold terminal commands."""
    print(json.dumps(content))


def cell(text: str | None) -> Text:
    """Returns a text for one entry's line."""
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


Entry = tuple[str, Sequence[tuple[str, Text]]]


def listing(title: str, entries: Iterable[Entry]) -> Group:
    """A heading and its named lines for each entry: unlike a table, it keeps ids whole on a narrow screen."""
    lines: list[Text] = [Text(harmless(title), style="bold")]
    for heading, named in entries:
        lines.append(Text(harmless(heading)))
        lines += [Text(f"    {name:<12}").append_text(text) for name, text in named]
    return Group(*lines, "" if len(lines) > 1 else "none")


def stats_listing(all_stats: Sequence[ScopeStats]) -> Group:
    """Returns an entry for each scope."""
    return listing("Scopes", ((stats.scope, _stats_lines(stats)) for stats in all_stats))


def _stats_lines(stats: ScopeStats) -> list[tuple[str, Text]]:
    count = stats.trajectories.get
    episodes = ", ".join(
        f"{count(status, 0):,} {status}" for status in ("labelled", "pending", "held", "open")
    )
    return [
        ("records", Text(f"{stats.records:,} alive, {stats.removed:,} removed, revision {stats.revision:,}")),
        ("productive", Text(number(stats.positive_share))),
        ("vote margin", Text(f"{number(stats.mean_vote_margin)} (1: all votes agree)")),
        ("trajectories", Text(episodes)),
    ]


def record_listing(title: str, records: Iterable[Record]) -> Group:
    """Returns an entry for each record."""
    return listing(title, ((record.record_id, _record_lines(record)) for record in records))


def _record_lines(record: Record) -> list[tuple[str, Text]]:
    votes = f", {record.vote_share:.2f} of {record.votes} votes" if record.votes else ""
    label = "productive" if record.label else "unproductive"
    return [
        ("label", Text(f"{label}{votes}, confidence was {number(record.confidence)}")),
        ("scope", cell(record.scope)),
        ("state", cell(record.state)),
        ("action", cell(record.action)),
        ("outcome", cell(record.outcome)),
    ]


def intent_listing(intents: Sequence[Intent]) -> Group:
    """Returns an entry for each action that was about to run when its episode was cut off."""
    title = "Was about to be executed when the episode was cut off (or is running now)"
    return listing(
        title,
        (
            (
                f"{intent.episode_id}, step {intent.step_index}",
                [
                    ("time (UTC)", Text(time_text(intent.created_at))),
                    ("scope", cell(intent.scope)),
                    ("state", cell(intent.state)),
                    ("action", cell(intent.action)),
                ],
            )
            for intent in intents
        ),
    )


def precedent_listing(title: str, precedents: Precedents) -> Group:
    """Returns the productive, then the unproductive records, best first."""
    return listing(
        title,
        (
            (
                f"{number(found.similarity)}  {'productive' if found.record.label else 'unproductive'}"
                f"  {found.record.record_id}",
                [
                    (name, cell(getattr(found.record, name)))
                    for name in ("task", "state", "action", "outcome")
                ],
            )
            for found in (*precedents.productive, *precedents.unproductive)
        ),
    )


def print_record(console: Console, record: Record) -> None:
    """Prints every field of a record in full."""
    for name, value in asdict(record).items():
        console.print(Text(f"{name}: ", style="bold"), Text(harmless(str(value))), sep="")


def episode_listing(trajectory: Trajectory) -> Group:
    """Returns an entry for each step of an episode."""
    title = f"Episode {trajectory.episode_id} of {trajectory.env_id}, {trajectory.ending}: {trajectory.task}"
    return listing(
        title,
        (
            (
                f"step {step.index}: {step.decision}{'' if step.executed else ' (not executed)'}, "
                f"confidence {number(step.confidence)}, "
                f"reward {'-' if step.reward is None else f'{step.reward:g}'}",
                [("state", cell(step.state)), ("action", cell(step.action)), ("outcome", cell(step.outcome))],
            )
            for step in trajectory.steps
        ),
    )
