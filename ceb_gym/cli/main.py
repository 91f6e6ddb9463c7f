"""The `ceb` command: collects the sub-commands and turns errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from ceb_gym import __version__
from ceb_gym.cli.bank import add_bank_parser
from ceb_gym.cli.import_streams import add_import_parser
from ceb_gym.cli.run import add_run_parser
from ceb_gym.errors import CebError, ConfigurationError

COMMAND_GROUP = "ceb_gym.commands"


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser with all sub-commands, those of other installed packages included."""
    parser = argparse.ArgumentParser(
        prog="ceb",
        description="Confidence with every step, from a Critic Experience Bank.",
        epilog="Exit codes: 0 done, 1 the run failed or was interrupted, 2 wrong arguments.",
    )
    parser.add_argument("--version", action="version", version=f"ceb-gym {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    add_run_parser(subparsers)
    add_bank_parser(subparsers)
    add_import_parser(subparsers)
    for offered in entry_points(group=COMMAND_GROUP):
        offered.load()(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    parsed = build_parser().parse_args(arguments)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # `--critic module:Class` finds a module of the current folder
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except CebError as error:
        print(f"ceb: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
    except KeyboardInterrupt:
        print("ceb: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # the reader of our output (such as `head`) has gone; nothing more can be said to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
