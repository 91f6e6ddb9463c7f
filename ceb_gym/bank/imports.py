"""Taking in records that were labelled elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from ceb_gym.bank import commits
from ceb_gym.bank.rows import DigestChain, Row, checked_name, record_to_row
from ceb_gym.errors import BankConflictError, BankError
from ceb_gym.types import Record

_BATCH = 500


class Importer:
    """Adds records inside one transaction, each id once.

    All scopes are locked at the start and in sorted order, so that two imports never wait for each other.

    Args:
        connection: A writing transaction.
        scopes: All scopes that records will come for.
        now: Seconds since the epoch.

    Attributes:
        added: How many records were new.
        known: How many the bank held already (alive or removed) with the same content.
    """

    def __init__(self, connection: Connection, scopes: Iterable[str], now: float):
        self._connection = connection
        self._now = now
        self._batch: dict[str, tuple[Row, str]] = {}
        self._revisions: dict[str, int] = {}
        self._chains: dict[str, DigestChain] = {}
        self.added = 0
        self.known = 0
        for scope in sorted(checked_name(scope, "Scope") for scope in set(scopes)):
            commits.lock_scope(connection, scope)
            self._revisions[scope] = commits.current_revision(connection, scope) + 1

    def add(self, record: Record, place: str) -> None:
        """Takes a record.

        Args:
            record: Of one of the scopes.
            place: Where it comes from, such as "records.jsonl:7", for the message if it is refused.

        Raises:
            BankConflictError: If the id is known with other content; maybe only at a later call.
            BankError: If the record cannot be stored.
        """
        try:
            row = record_to_row(record)
        except BankError as error:
            raise BankError(f"{place}: {error}") from error
        if record.scope not in self._revisions:
            raise BankError(f"{place}: scope {record.scope!r} is none of those that are imported.")
        if row["record_id"] not in self._batch:
            self._batch[row["record_id"]] = (row, place)
        elif self._batch[row["record_id"]][0]["digest"] == row["digest"]:
            self.known += 1
        else:
            raise _conflict(row, place)
        if len(self._batch) >= _BATCH:
            self._flush()

    def finish(self) -> None:
        """Writes what is left, and the revisions of the scopes that got new records."""
        self._flush()
        for scope, chain in self._chains.items():
            revision = commits.next_revision(self._connection, scope)
            commits.note_revision(self._connection, scope, revision, "import", chain, self._now)

    def _flush(self) -> None:
        held = commits.digests_by_id(self._connection, list(self._batch))
        new: dict[str, list[Row]] = {}
        for record_id, (row, place) in self._batch.items():
            if record_id not in held:
                new.setdefault(row["scope"], []).append(row)
            elif held[record_id] != row["digest"]:
                raise _conflict(row, place)
        for scope, rows in new.items():
            self._insert(scope, rows)
        self.known += len(held)
        self._batch.clear()

    def _insert(self, scope: str, rows: list[Row]) -> None:
        revision = self._revisions[scope]
        if scope not in self._chains:
            self._chains[scope] = DigestChain(commits.digest_of(self._connection, scope, revision - 1))
        for row in rows:
            self._chains[scope].add(row["record_id"], row["digest"])
        commits.insert_records(self._connection, rows, revision)
        self.added += len(rows)


def _conflict(row: Row, place: str) -> BankConflictError:
    return BankConflictError(
        f"{place}: record {row['record_id']!r} is known with other content; nothing of the file was imported."
    )
