"""Records as JSON Lines: a header, then one record a line with every field of `Record`.

The header is `{"format": "ceb-bank-records", "version": 1, "bank_id": ...}`. Each record line also has
`added`, the revision of its scope that added it where it comes from; lines are in that order scope by scope.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from ceb_gym.bank.store import SqlBank
from ceb_gym.errors import BankError
from ceb_gym.types import Record

FORMAT = "ceb-bank-records"
VERSION = 1

_FIELDS = tuple(field.name for field in fields(Record))
_TEXTS = ("record_id", "scope", "episode_id", "task", "state", "action", "outcome", "critic", "labeler")
_BOOLS = ("label", "repeated")
_INTEGERS = ("step_index", "votes")
_NUMBERS = ("vote_share", "created_at")


@dataclass(frozen=True, slots=True)
class ImportCounts:
    """What an import did.

    Attributes:
        added: Records that were new.
        known: Records that the bank held already.
        scopes: The scopes of the file, sorted.
    """

    added: int
    known: int
    scopes: tuple[str, ...]


def export_records(bank: SqlBank, path: str | Path, scopes: Sequence[str] | None = None) -> int:
    """Writes the alive records of these scopes (default: all) and returns how many.

    Reads a page at a time. The file appears under its name when it is complete; one of that name is replaced.

    Raises:
        BankError: If the bank does not hold a scope, or the file cannot be written.
    """
    known = bank.scopes()
    missing = sorted(set(scopes or ()) - set(known))
    if missing:
        raise BankError(f"Bank {bank.url} has no scope {missing[0]!r}; it has: {', '.join(known) or 'none'}.")
    count = 0
    with _written_at_once(Path(path)) as file:
        file.write(_line({"format": FORMAT, "version": VERSION, "bank_id": bank.bank_id}))
        for scope in known if scopes is None else sorted(set(scopes)):
            for added, record in bank.iter_records(scope):
                content = {name: getattr(record, name) for name in _FIELDS}
                content["features"] = dict(record.features)
                file.write(_line({**content, "added": added}))
                count += 1
    return count


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode() + b"\n"


@contextmanager
def _written_at_once(path: Path) -> Iterator[IO[bytes]]:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise BankError(f"{path} cannot be written: {error.strerror}. No file was left behind.") from error


def import_records(bank: SqlBank, path: str | Path, scope: str | None = None) -> ImportCounts:
    """Adds the records of a file that the bank does not hold yet; all of them or, on an error, none.

    The lines are checked first and then added in one transaction, as one new revision of each scope (kind
    "import"). Other writers of the bank wait for that transaction. A record that the bank once held
    and removed stays removed.

    Args:
        bank: Where to.
        path: A file of `export_records`.
        scope: Puts all records into this scope, whatever scope they come from.

    Raises:
        BankConflictError: If an id is known with other content; names line and id.
        BankError: If the file cannot be read or a line is broken; names the line.
    """
    try:
        with Path(path).open("rb") as file:
            scopes = {record.scope for _, record in _read(file, path, scope)}
            file.seek(0)
            with bank.importing(scopes) as importer:
                for number, record in _read(file, path, scope):
                    importer.add(record, f"{path}:{number}")
    except OSError as error:
        raise BankError(f"{path} cannot be read: {error.strerror}. Nothing was imported.") from error
    return ImportCounts(importer.added, importer.known, tuple(sorted(scopes)))


def _read(file: IO[bytes], path: str | Path, scope: str | None) -> Iterator[tuple[int, Record]]:
    """Yields each record with its line number."""
    seen_header = False
    for number, line in enumerate(file, start=1):
        try:
            if not line.strip():
                continue
            content = _object(line)
            if seen_header:
                record = _record(content)
                yield number, record if scope is None else replace(record, scope=scope)
            else:
                _check_header(content)
                seen_header = True
        except (ValueError, RecursionError) as error:
            raise BankError(
                f"{path}:{number}: {error or 'nested too deeply'}; nothing was imported."
            ) from error
    if not seen_header:
        raise BankError(f"{path}: the file is empty; it should start with a line of format {FORMAT!r}.")


def _object(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no finite number")


def _check_header(content: dict[str, Any]) -> None:
    if content.get("format") != FORMAT:
        raise ValueError(f"the first line does not say format {FORMAT!r}, so this is no export of a bank")
    if content.get("version") != VERSION:
        raise ValueError(f"version {content.get('version')!r} of the format; this version reads {VERSION}")


def _record(content: dict[str, Any]) -> Record:
    content = {name: value for name, value in content.items() if name != "added"}
    if set(content) != set(_FIELDS):
        wrong = sorted(set(content) ^ set(_FIELDS))
        raise ValueError(f"field {wrong[0]!r} is {'unknown' if wrong[0] in content else 'missing'}")
    checks = (
        *((name, isinstance(content[name], str), "text") for name in _TEXTS),
        *((name, isinstance(content[name], bool), "true or false") for name in _BOOLS),
        *((name, _is_integer(content[name]), "an integer") for name in _INTEGERS),
        *((name, _is_number(content[name]), "a number") for name in _NUMBERS),
        (
            "confidence",
            content["confidence"] is None or _is_number(content["confidence"]),
            "a number or null",
        ),
        ("agrees", content["agrees"] is None or isinstance(content["agrees"], bool), "true, false or null"),
        ("features", _is_numbers(content["features"]), "an object of numbers"),
    )
    for name, fits, expected in checks:
        if not fits:
            raise ValueError(f"field {name!r} is {content[name]!r:.60}, not {expected}")
    return Record(**content)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_integer(value)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_number(number) for number in value.values())
