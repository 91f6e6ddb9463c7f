"""The `ceb` command: collects the sub-commands and turns errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points

from ceb_gym import __version__
from ceb_gym.cli.bank import add_bank_parser
from ceb_gym.cli.import_streams import add_import_parser
from ceb_gym.cli.run import add_run_parser
from ceb_gym.errors import CebError, ConfigurationError
from ceb_gym.text import harmless

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
    _prepare_output()
    parsed = build_parser().parse_args(arguments)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # `--critic module:Class` finds a module of the current folder
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except CebError as error:
        _say(str(error))
        return 2 if isinstance(error, ConfigurationError) else 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 1
    except BrokenPipeError:
        # the reader of our output (such as `head`) has gone; nothing more can be said to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as error:  # from an agent, critic or environment: only argparse above may end us
        _say(f"the run was ended from inside by SystemExit({error.code!r})")
        return 1
    except Exception as error:  # an agent, critic or environment failed, or the output could not be written
        _say(f"the run failed: {type(error).__name__}: {error} (CEB_TRACEBACK=1 shows where)")
        if os.environ.get("CEB_TRACEBACK"):
            traceback.print_exc()
        return 1


def _prepare_output() -> None:
    """Lets any text be printed on any terminal, and nothing fail where standard output is closed."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say(message: str) -> None:
    print(f"ceb: {harmless(message)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
