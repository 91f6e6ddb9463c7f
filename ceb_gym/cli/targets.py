"""Where results go: checked before the work, so that nothing is lost after it."""

from __future__ import annotations

import os
from pathlib import Path

from ceb_gym.errors import ConfigurationError

_SQLITE_MAGIC = b"SQLite format 3\x00"


def bank_file(url: str) -> Path | None:
    """The file of a bank's URL; None for banks elsewhere."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None


def check_target(target: str | os.PathLike[str], *inputs: str | os.PathLike[str] | None) -> None:
    """Raises ConfigurationError where writing to `target` would destroy an input or a database, or fail."""
    path = Path(target)
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder: give the path of the file to write.")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path} cannot be written: there is no folder {path.parent}.")
    for source in inputs:
        if source is not None and os.path.realpath(path) == os.path.realpath(source):
            raise ConfigurationError(f"{path} is an input and would be overwritten: write elsewhere.")
    try:
        with path.open("rb") as file:
            is_database = file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except FileNotFoundError:
        is_database = False
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}.") from error
    if is_database:
        raise ConfigurationError(f"{path} is a database and would be overwritten: write elsewhere.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{path} cannot be written: permission denied.")
