"""Where a bank is: URLs, and what a file must look like before it is touched."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from ceb_gym.bank.schema import APPLICATION_ID
from ceb_gym.errors import BankError, BankSchemaError, ConfigurationError

_SQLITE_MAGIC = b"SQLite format 3\x00"
_APPLICATION_ID_AT = 68


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed bank URL.

    Attributes:
        kind: Which database it names.
        shown: The URL without password, for messages and comparison.
        path: The absolute path of an SQLite file.
        url: What SQLAlchemy needs for PostgreSQL.
    """

    kind: Literal["file", "memory", "postgresql"]
    shown: str
    path: Path | None = None
    url: URL | None = None


def bank_url(path_or_url: str) -> str:
    """Returns the URL for what a person may write: a URL as it is, a path as `sqlite:///path`."""
    if path_or_url == "memory:" or "://" in path_or_url:
        return path_or_url
    return f"sqlite:///{path_or_url}"


def parse_location(url: str) -> Location:
    """Returns where the bank is.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `memory:` or
            `postgresql+psycopg://user@host/name`.

    Raises:
        ConfigurationError: If the URL is of another form.
    """
    if url == "memory:":
        return Location("memory", url)
    if url.startswith("sqlite:///"):
        return _file_location(url.removeprefix("sqlite:///"))
    if url.startswith(("postgresql://", "postgresql+psycopg://")):
        try:
            parsed = make_url(url).set(drivername="postgresql+psycopg")
        except (ArgumentError, ValueError) as error:
            raise ConfigurationError("The PostgreSQL URL of the bank cannot be parsed.") from error
        shown = parsed.difference_update_query(["password", "sslpassword"])
        return Location("postgresql", shown.render_as_string(hide_password=True), url=parsed)
    scheme = url.partition("//")[0][:40]  # what follows may hold a password
    raise ConfigurationError(
        f"Bank URL {scheme!r}... is not understood; write sqlite:///file.db (four slashes for an absolute "
        "path), memory: or postgresql+psycopg://user@host/name."
    )


def _file_location(text: str) -> Location:
    if text in ("", ":memory:"):
        raise ConfigurationError("A bank in memory is written memory:, one in a file sqlite:///file.db.")
    if "?" in text or "\x00" in text:
        raise ConfigurationError(f"Bank file {text!r} holds a '?' or NUL; sqlite:/// takes a plain path.")
    path = Path(os.path.abspath(text))
    return Location("file", f"sqlite:///{path}", path=path)


def sqlite_uri(path: Path, *, read_only: bool) -> str:
    """Returns the URI that opens the file without creating anything that is not asked for."""
    mode = "ro" if read_only else "rwc"
    wal = Path(f"{path}-wal")
    if read_only and not wal.exists() and not os.access(path.parent, os.W_OK):
        mode += "&immutable=1"  # SQLite cannot place its lock files here, and no writer is about
    return f"file:{quote(os.fsencode(path))}?mode={mode}"


def file_is_new(path: Path, *, read_only: bool) -> bool:
    """Looks at the file without opening it as a database; returns whether a bank must be created there.

    Raises:
        BankError: If no bank can be there.
        BankSchemaError: If the file is something else; it has not been touched.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return _may_create(path, read_only=read_only)
    except OSError as error:
        raise BankError(f"Bank {path} cannot be opened: {error.strerror}.") from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise BankError(f"Bank {path} is {what}; give the path of a file, such as {path / 'bank.db'}.")
    try:
        with path.open("rb") as file:
            header = file.read(_APPLICATION_ID_AT + 4)
    except OSError as error:
        raise BankError(f"Bank {path} cannot be read: {error.strerror}.") from error
    if not header and not read_only:
        return True
    if not header.startswith(_SQLITE_MAGIC):
        raise BankSchemaError(
            f"{path} is not an SQLite file, so no bank. It was left as it is; give another path."
        )
    if header[_APPLICATION_ID_AT:] != APPLICATION_ID.to_bytes(4, "big"):
        raise BankSchemaError(
            f"{path} is an SQLite file of another application, not a bank. It was left as it is; "
            "give another path."
        )
    return False


def _may_create(path: Path, *, read_only: bool) -> bool:
    if read_only:
        raise BankError(f"Bank {path} does not exist, and read-only access creates none. Check the path.")
    if not path.parent.is_dir():
        raise BankError(
            f"Bank {path} cannot be created: folder {path.parent} does not exist. Create it first."
        )
    return True
