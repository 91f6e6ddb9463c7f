"""`ceb import`: turns other people's logs into recorded streams."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ceb_gym.cli.targets import check_target
from ceb_gym.streams import write_stream
from ceb_gym.streams.amex import import_amex_decisions
from ceb_gym.streams.intercode import ImportedRuns, import_intercode_logs
from ceb_gym.streams.values import SOURCE_EPISODE

AddImporter = Callable[["argparse._SubParsersAction[Any]"], None]


def add_import_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Adds `import` and its importers to the command line."""
    parser = subparsers.add_parser(
        "import",
        help="turn logs of agent runs into a recorded stream",
        description="Turn logs of agent runs into a recorded stream (docs/stream-format.md).",
    )
    importers = parser.add_subparsers(dest="importer", metavar="KIND", required=True)
    for add_importer in IMPORTERS:
        add_importer(importers)


def run_intercode_import(args: argparse.Namespace) -> int:
    """Imports InterCode logs and prints what was found; returns the exit code."""
    check_target(args.out, *args.paths)
    runs = import_intercode_logs(
        args.paths, first_baseline=args.first_baseline, decimals=None if args.raw_rewards else 4
    )
    write_stream(args.out, runs.header, runs.episodes)
    print(_summary(args.out, runs))
    return 0


def run_amex_import(args: argparse.Namespace) -> int:
    """Imports AMEX decisions and prints what was found; returns the exit code."""
    check_target(args.out, args.path)
    runs = import_amex_decisions(args.path)
    write_stream(args.out, runs.header, runs.episodes)
    print(_amex_summary(args.out, runs))
    return 0


def _add_intercode(importers: argparse._SubParsersAction[Any]) -> None:
    parser = importers.add_parser(
        "intercode-logs",
        help="multi-turn runs of InterCode-Bash",
        description="Import run logs of InterCode-Bash. Of a folder only *multiturn*.json is taken.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="log files or their folders")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the stream to write")
    parser.add_argument(
        "--first-baseline",
        choices=["0", "initial"],
        default="0",
        help="level before the first step in the labelling rule: 0 (as in the paper, default) or the "
        "reward of doing nothing",
    )
    parser.add_argument(
        "--raw-rewards",
        action="store_true",
        help="do not round rewards to 4 places in the labelling rule: whether a rise of exactly 0.05 counts "
        "is then floating point noise",
    )
    parser.set_defaults(run=run_intercode_import)


def _add_amex(importers: argparse._SubParsersAction[Any]) -> None:
    parser = importers.add_parser(
        "amex-decisions",
        help="single decisions on AMEX episodes, labelled by people",
        description="Import agent decisions on AMEX episodes (JSON Lines of episode_id, step, instruction, "
        "history, action, correct). Each becomes an episode whose last step is the decision.",
    )
    parser.add_argument("path", type=Path, metavar="FILE", help="the file of decisions")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the stream to write")
    parser.set_defaults(run=run_amex_import)


def _amex_summary(out: Path, runs: ImportedRuns) -> str:
    decisions = len(runs.episodes)
    sources = {episode.metadata[SOURCE_EPISODE] for episode in runs.episodes}
    lines = [
        f"{out}: {decisions:,} decisions on {len(sources):,} AMEX episodes, each after the steps of its "
        f"history ({runs.n_steps - decisions:,} steps, unlabelled).",
        f"{runs.n_productive:,} decisions ({runs.n_productive / decisions:.1%}) are correct by annotation; "
        "`ceb run --labeler given` learns from these labels.",
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in runs.notes)])


def _summary(out: Path, runs: ImportedRuns) -> str:
    share = runs.n_productive / runs.n_steps
    lines = [
        f"{out}: {len(runs.episodes):,} episodes, {runs.n_steps:,} steps.",
        f"{runs.n_productive:,} steps ({share:.1%}) are productive by {runs.header.label_rule}.",
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in runs.notes)])


IMPORTERS: Final[tuple[AddImporter, ...]] = (_add_intercode, _add_amex)
"""One function per kind of log; each adds a sub-parser whose `run` default takes the parsed arguments."""
