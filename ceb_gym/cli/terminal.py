"""The console that all commands print to."""

from __future__ import annotations

from typing import IO

from rich.console import Console


class PlainConsole(Console):
    """Prints text as it is, and lets the main program see that the reader of our output has gone."""

    def __init__(self, file: IO[str] | None = None) -> None:
        super().__init__(file=file, markup=False, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raises what rich would turn into an exit of its own."""
        raise BrokenPipeError
