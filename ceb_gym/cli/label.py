"""`ceb bank label`: labels the episodes that wait for it."""

from __future__ import annotations

import argparse
import sys

from ceb_gym.bank.store import SqlBank
from ceb_gym.build.parts import make_labeler
from ceb_gym.engine.learning import label_claimed
from ceb_gym.errors import ConfigurationError, LabelerError


def add_label_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `ceb bank label` takes besides the bank."""
    parser.add_argument(
        "--labeler", required=True, help="reward_level, return:0.99, success, module:function"
    )
    parser.add_argument("--scope", help="only this scope (default: all)")
    parser.add_argument(
        "--held", action="store_true", help="also episodes that were held back without labels"
    )
    parser.add_argument(
        "--take-over", action="store_true", help="also those that a process which is dead now was labelling"
    )


def label_waiting(bank: SqlBank, args: argparse.Namespace) -> int:
    """Labels all that waits, oldest first, and prints what came of it; returns the exit code."""
    labeler = make_labeler(args.labeler)
    if labeler is None:
        raise ConfigurationError("--labeler none labels nothing: name a labeler.")
    labelled = claimed_by_others = failed = 0
    waiting = bank.pending(args.scope, held=args.held)
    for key in waiting:
        claim = bank.claim(key, take_over=args.take_over)
        if claim is None:
            claimed_by_others += 1
            continue
        try:
            label_claimed(bank, labeler, claim)
            labelled += 1
        except LabelerError as error:
            failed += 1
            print(f"ceb: {error}", file=sys.stderr)
    print(f"{labelled:,} of {len(waiting):,} waiting trajectories labelled by {labeler.name}.")
    if claimed_by_others:
        print(
            f"{claimed_by_others:,} are being labelled by another process. If it is dead, give --take-over, "
            "or try again in 10 minutes."
        )
    return 1 if failed else 0
