"""`ceb bank`: looks into a bank and looks after it."""

from __future__ import annotations

import argparse
import glob
import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.text import Text

from ceb_gym.bank.jsonl import export_records, import_records
from ceb_gym.bank.maintenance import ScopeStats
from ceb_gym.bank.migrations import migrate
from ceb_gym.bank.store import SqlBank
from ceb_gym.build.parts import snapshot_path, split_bank_url
from ceb_gym.cli import bank_listings
from ceb_gym.cli.bank_listings import print_json
from ceb_gym.cli.label import add_label_arguments, label_waiting
from ceb_gym.cli.targets import bank_file, check_target
from ceb_gym.cli.terminal import PlainConsole
from ceb_gym.errors import BankError, ConfigurationError
from ceb_gym.hindsight.drift import EPISODES as DRIFT_EPISODES
from ceb_gym.hindsight.drift import Drift, one_vote_margins
from ceb_gym.retrieval.views import TfidfRetriever
from ceb_gym.text import harmless
from ceb_gym.types import Pin, Query

_SECONDS_A_DAY = 86_400.0

Subparsers = argparse._SubParsersAction  # argparse has no public name for it


def add_bank_parser(subparsers: Subparsers[Any]) -> None:
    """Adds `bank` and its sub-commands to the command line."""
    parser = subparsers.add_parser(
        "bank",
        help="look into a bank, prune it, exchange records",
        description="Look into a Critic Experience Bank and look after it.",
    )
    commands = parser.add_subparsers(dest="bank_command", metavar="COMMAND", required=True)
    for add_command in (
        _add_stats,
        _add_show,
        _add_search,
        _add_label,
        _add_export,
        _add_import,
        _add_prune,
        _add_migrate,
    ):
        add_command(commands)


def _command(
    commands: Subparsers[Any], name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=f"{text.capitalize()}."
    )
    parser.add_argument(
        "--bank",
        required=True,
        metavar="PATH_OR_URL",
        help="a file, or a URL such as postgresql://..., with ?scope=NAME if wanted",
    )
    parser.set_defaults(run=run)
    return parser


@contextmanager
def _opened(args: argparse.Namespace, *, read_only: bool, may_create: bool = False) -> Iterator[SqlBank]:
    url, scope, _ = split_bank_url(args.bank)
    if scope is not None and getattr(args, "scope", None) is None and hasattr(args, "scope"):
        args.scope = scope
    if url == "memory:":
        raise ConfigurationError("--bank memory: is always empty; give the path of a bank or a URL.")
    path = bank_file(url)
    if path is not None and not path.exists() and not may_create:
        raise BankError(f"Bank {path} does not exist: check the path.")
    bank = SqlBank(url, read_only=read_only)
    try:
        yield bank
    finally:
        bank.close()


def _one_scope(bank: SqlBank, asked: str | None) -> str:
    """Returns the scope that was asked for, or the only one."""
    scopes = bank.scopes()
    if asked is not None and asked in scopes:
        return asked
    listed = ", ".join(scopes) or "none"
    if asked is not None:
        raise BankError(f"Bank {bank.url} has no scope {asked!r}; it has: {listed}.")
    if len(scopes) != 1:
        raise ConfigurationError(
            f"Bank {bank.url} has {len(scopes)} scopes; choose one by --scope: {listed}."
        )
    return scopes[0]


# stats


def _add_stats(commands: Subparsers[Any]) -> None:
    parser = _command(commands, "stats", run_stats, "count episodes, records and labels of each scope")
    parser.add_argument("--scope", help="only this scope")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_stats(args: argparse.Namespace) -> int:
    """Prints counts, and which command finishes what is unfinished."""
    with _opened(args, read_only=True) as bank:
        scopes = bank.scopes() if args.scope is None else [_one_scope(bank, args.scope)]
        all_stats = [bank.stats(scope) for scope in scopes]
        drifts = {scope: _drift(bank, scope) for scope in scopes}
        bank_facts = {"bank": bank.url, "bank_id": bank.bank_id}
    if args.json:
        print_json({**bank_facts, "scopes": [stats.as_dict() for stats in all_stats]})
        return 0
    console = PlainConsole()
    console.print(Text(harmless(f"Bank {bank_facts['bank']} (id {bank_facts['bank_id']})")))
    console.print(bank_listings.stats_listing(all_stats) if all_stats else "It is empty.")
    for line in (*_unfinished(all_stats, args.bank), *_drift_lines(drifts, args.bank)):
        console.print(Text(line), soft_wrap=True)
    return 0


def _drift(bank: SqlBank, scope: str) -> Drift | None:
    """Of the newest commits, which are an episode each (or a segment of one)."""
    newest = bank.revision(scope)
    return one_vote_margins(bank.records(scope, since=max(0, newest - DRIFT_EPISODES), until=newest))


def _drift_lines(drifts: Mapping[str, Drift | None], bank: str) -> Iterator[str]:
    for scope, drift in drifts.items():
        if drift is None:
            continue
        said = (
            f"{harmless(scope)}: {drift.share:.0%} of {drift.n_records:,} labels of the newest "
            f"{drift.n_episodes:,} episodes hung on one vote"
        )
        if drift.is_high:
            place = f"--bank {shlex.quote(bank)} --scope {shlex.quote(scope)}"
            said += f": the labeler is unsure. To begin anew: `ceb bank prune {place} --keep 0`"
        yield said


def _unfinished(all_stats: list[ScopeStats], bank: str) -> Iterator[str]:
    def total(status: str) -> int:
        return sum(stats.trajectories.get(status, 0) for stats in all_stats)

    place = f"--bank {shlex.quote(bank)}"
    label = f"ceb bank label {place} --labeler NAME"
    if total("pending"):
        yield f"{total('pending'):,} pending (ended, not yet labelled): `{label}`"
    if total("held"):
        yield f"{total('held'):,} held (kept without labels): `{label} --held`"
    if total("open"):
        yield (
            f"{total('open'):,} open (segments of episodes that run, or were cut off): "
            f"if nothing is running, `ceb bank prune {place} --end-open` makes them held"
        )
    intents = sum(stats.intents for stats in all_stats)
    if intents:
        yield f"{intents:,} intents without an episode: `ceb bank show {place}` lists them"


# show


def _add_show(commands: Subparsers[Any]) -> None:
    parser = _command(commands, "show", run_show, "show a record, an episode, or the newest records")
    parser.add_argument("id", nargs="?", help="id of a record or an episode; default: the newest records")
    parser.add_argument("--scope", help="of the newest records")
    parser.add_argument("--limit", type=_positive, default=20, help="how many of the newest records (20)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_show(args: argparse.Namespace) -> int:
    """Prints one record or episode in full, or the newest records and intents left behind."""
    with _opened(args, read_only=True) as bank:
        return _show_newest(bank, args) if args.id is None else _show_one(bank, args)


def _show_newest(bank: SqlBank, args: argparse.Namespace) -> int:
    scopes = bank.scopes() if args.scope is None else [_one_scope(bank, args.scope)]
    newest = []
    for scope in scopes:
        newest += [record for _, record in deque(bank.iter_records(scope), maxlen=args.limit)]
    intents = [intent for intent in bank.intents() if args.scope in (None, intent.scope)]
    if args.json:
        print_json({"records": list(map(asdict, newest)), "intents": list(map(asdict, intents))})
        return 0
    console = PlainConsole()
    console.print(bank_listings.record_listing("Newest records of each scope", newest))
    if intents:
        console.print(bank_listings.intent_listing(intents))
    return 0


def _show_one(bank: SqlBank, args: argparse.Namespace) -> int:
    console = PlainConsole()
    record = bank.records_by_id([args.id]).get(args.id)
    if record is not None:
        if args.json:
            print_json(asdict(record))
        else:
            bank_listings.print_record(console, record)
        return 0
    trajectory = bank.episode(args.id)
    records = bank.records_of_episode(args.id)
    if args.json:
        print_json({**asdict(trajectory), "records": list(map(asdict, records))})
        return 0
    console.print(bank_listings.episode_listing(trajectory))
    console.print(bank_listings.record_listing("Its records", records))
    return 0


# search


def _add_search(commands: Subparsers[Any]) -> None:
    parser = _command(commands, "search", run_search, "find the records most similar to an action")
    parser.add_argument("action", help="the action, as text")
    parser.add_argument("--task", default="", help="the task it belongs to")
    parser.add_argument("--state", default="", help="the state before it")
    parser.add_argument("--scope", help="which scope (default: the only one)")
    parser.add_argument("-k", type=_positive, default=5, help="how many records of each class (5)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_search(args: argparse.Namespace) -> int:
    """Prints what a critic would be shown for this task, state and action."""
    with _opened(args, read_only=True) as bank:
        scope = _one_scope(bank, args.scope)
        revision = bank.revision(scope)
        query = Query("", scope, revision, "", args.task, args.state, args.action, (), False, 0)
        view = TfidfRetriever(bank).view((Pin(scope, revision),))
        precedents = view.find([query], args.k)[0]
    if args.json:
        print_json({"scope": scope, **asdict(precedents)})
    else:
        title = harmless(f"Scope {scope} at revision {revision}")
        PlainConsole().print(bank_listings.precedent_listing(title, precedents))
    return 0


# label


def _add_label(commands: Subparsers[Any]) -> None:
    add_label_arguments(_command(commands, "label", run_label, "label the episodes that wait for it"))


def run_label(args: argparse.Namespace) -> int:
    """Labels what is pending, and what is held if asked for."""
    with _opened(args, read_only=False) as bank:
        if args.scope is not None:
            _one_scope(bank, args.scope)
        return label_waiting(bank, args)


# export, import


def _add_export(commands: Subparsers[Any]) -> None:
    parser = _command(commands, "export", run_export, "write records as JSON Lines")
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--scope", action="append", help="only this scope; can be given several times")


def run_export(args: argparse.Namespace) -> int:
    """Writes the alive records of the scopes to a file."""
    check_target(args.out, bank_file(split_bank_url(args.bank)[0]))
    with _opened(args, read_only=True) as bank:
        scopes = [args.scope] if isinstance(args.scope, str) else args.scope
        count = export_records(bank, args.out, scopes)
    print(f"{args.out}: {count:,} records.")
    return 0


def _add_import(commands: Subparsers[Any]) -> None:
    parser = _command(commands, "import", run_import, "add records from a file of `ceb bank export`")
    parser.add_argument("file", metavar="FILE", help="the file to read")
    parser.add_argument(
        "--scope", help="put all records into this scope (default: the scopes they come from)"
    )


def run_import(args: argparse.Namespace) -> int:
    """Adds the records of a file: all, or none on an error."""
    with _opened(args, read_only=False, may_create=True) as bank:
        counts = import_records(bank, args.file, args.scope)
    scopes = harmless(", ".join(counts.scopes)) or "none"
    print(f"{counts.added:,} records added, {counts.known:,} were there already (scopes: {scopes}).")
    return 0


# prune, migrate


def _add_prune(commands: Subparsers[Any]) -> None:
    parser = _command(commands, "prune", run_prune, "remove old records and what a crash left behind")
    parser.add_argument("--scope", help="which scope (default: the only one)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--keep", type=_not_negative, metavar="N", help="remove all but the newest N records")
    which.add_argument(
        "--older-than", type=_days, metavar="DAYS", help="remove records older than this many days"
    )
    parser.add_argument("--purge", action="store_true", help="delete removed records for good")
    parser.add_argument("--end-open", action="store_true", help="make open segments of cut-off episodes held")
    parser.add_argument(
        "--forget-intents", action="store_true", help="delete the journal of cut-off episodes, in all scopes"
    )


def run_prune(args: argparse.Namespace) -> int:
    """Does what the options ask for, in the order of the help text."""
    by_age = args.keep is not None or args.older_than is not None
    if not (by_age or args.purge or args.end_open or args.forget_intents):
        raise ConfigurationError(
            "Nothing to prune was named: give --keep, --older-than, --purge, --end-open or --forget-intents."
        )
    with _opened(args, read_only=False) as bank:
        scope = _one_scope(bank, args.scope) if by_age or args.purge or args.end_open else ""
        if by_age:
            before = None if args.older_than is None else time.time() - args.older_than * _SECONDS_A_DAY
            print(f"{bank.prune(scope, keep=args.keep, before=before):,} records removed.")
        if args.purge:
            print(f"{bank.purge(scope):,} removed records deleted for good.")
            _forget_snapshots(args.bank)
        if args.end_open:
            print(f"{bank.end_open(scope):,} open segments are held now.")
        if args.forget_intents:
            print(f"{bank.forget_intents():,} intents forgotten.")
    return 0


def _forget_snapshots(bank: str) -> None:
    """Deletes index snapshots, which hold words of purged records; the next start builds the index anew."""
    base = snapshot_path(split_bank_url(bank)[0])
    if base is not None:
        for snapshot in base.parent.glob(f"{glob.escape(base.name)}.*.npz"):
            snapshot.unlink(missing_ok=True)


def _add_migrate(commands: Subparsers[Any]) -> None:
    _command(commands, "migrate", run_migrate, "bring a bank of an older version up to date")


def run_migrate(args: argparse.Namespace) -> int:
    """Runs the missing migrations; try a copy first."""
    names = migrate(split_bank_url(args.bank)[0])
    print(f"Done: {', '.join(names)}." if names else "The bank is up to date.")
    return 0


# Argument types


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _days(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is no number of days")
    return value
