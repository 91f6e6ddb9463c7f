"""`ceb run --warm`: other runs are banked before the run that reads them."""

from __future__ import annotations

import argparse
import filecmp
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

from ceb_gym.build.parts import split_bank_url
from ceb_gym.errors import ConfigurationError
from ceb_gym.evaluation.warm import bank_stream, warm_scope
from ceb_gym.streams import read_stream

Progress = Callable[[int], AbstractContextManager[Callable[[object], None]]]


@contextmanager
def bank_place(args: argparse.Namespace) -> Iterator[str]:
    """Yields the run's bank as the wrapper takes it: with its scope, and the warm scopes to read.

    A bank in memory belongs to one wrapper, and warm runs are banked by others: then it is a file that is
    gone afterwards.
    """
    if not args.warm and args.scope is None:
        yield args.bank
        return
    url, scope, read_scopes = split_bank_url(args.bank)
    if scope is not None and args.scope is not None:
        raise ConfigurationError("The scope is given twice, in --bank and by --scope: give it once.")
    scope = args.scope if args.scope is not None else scope
    warm = tuple(warm_scope(path) for path in args.warm)
    if scope in warm:
        raise ConfigurationError(f"The scope {scope} is one of the warm ones: give the run another --scope.")
    parameters = {
        "scope": scope,
        "read_scopes": ",".join(dict.fromkeys((*read_scopes, *warm))),
    }
    query = urlencode({name: value for name, value in parameters.items() if value})
    with TemporaryDirectory() as folder:
        if warm and url.startswith("memory:"):
            url = f"sqlite:///{folder}/bank.db"
        yield url + ("&" if "?" in url else "?") + query if query else url


def check_warm(args: argparse.Namespace, labeler: str | None) -> None:
    """Raises an error for warm runs that cannot be banked, before anything is done.

    Raises:
        ConfigurationError: If they name one scope twice, hold the run that is judged, or nobody labels them.
        StreamError: If one breaks its format.
    """
    if args.warm and labeler in (None, "none"):
        raise ConfigurationError(
            "--warm needs a labeler, or nothing of these runs would be banked: pass --labeler."
        )
    paths: dict[str, Path] = {}
    for path in args.warm:
        read_stream(path)
        other = paths.setdefault(warm_scope(path), path)
        if other is not path:
            raise ConfigurationError(
                f"--warm {other} and {path} would share the scope {warm_scope(path)}: rename one file."
            )
        if args.stream is not None and _is_same(path, args.stream):
            raise ConfigurationError(
                f"--warm {path} is the stream that is judged: its labels would be known beforehand."
            )


def _is_same(path: Path, other: Path) -> bool:
    return os.path.samefile(path, other) or filecmp.cmp(path, other, shallow=False)


def bank_warm_runs(args: argparse.Namespace, place: str, labeler: str | None, progress: Progress) -> None:
    """Banks the warm runs, each into its scope, and says on standard error what it did."""
    url = split_bank_url(place)[0]
    for path in args.warm:
        with progress(len(read_stream(path))) as advance:
            warm = bank_stream(
                path,
                bank=url,
                labeler=labeler,
                critic=args.critic,
                retriever=args.retriever,
                on_episode=lambda advance=advance: advance(None),  # type: ignore[misc]  # bound now, not at the call
            )
        done = (
            f"banked {warm.n_banked} episodes of {path}, unscored"
            if warm.n_banked
            else "is in the bank already and is not banked twice"
        )
        if warm.n_waiting:
            done += (
                f"; {warm.n_waiting} of its episodes wait for labels, since a process that was killed holds "
                "them for up to ten minutes"
            )
        print(f"warm scope {warm.scope}: {done}", file=sys.stderr)
