"""Statements on records and revisions. Each function runs inside a caller's transaction.

A revision is taken by raising the scope's counter, whose row stays locked until the commit: so revision
numbers become visible in their own order, and a reader that follows them misses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, or_, select, tuple_, update

from ceb_gym.bank.episodes import insert_unless_there
from ceb_gym.bank.rows import DigestChain, Row, record_from_row
from ceb_gym.bank.schema import RECORD, RECORD_COLUMNS, REVISION, SCOPE
from ceb_gym.errors import BankError, RevisionGoneError
from ceb_gym.types import Changes, Record

_R = RECORD.c
_IN_CHUNK = 500

_REVISION = select(SCOPE.c.revision).where(SCOPE.c.scope == bindparam("of_scope"))
_FLOOR = select(SCOPE.c.floor_revision).where(SCOPE.c.scope == bindparam("of_scope"))
_RAISE = (
    update(SCOPE)
    .where(SCOPE.c.scope == bindparam("of_scope"))
    .values(revision=SCOPE.c.revision + 1)
    .returning(SCOPE.c.revision)
)
_DIGEST = select(REVISION.c.digest).where(
    REVISION.c.scope == bindparam("of_scope"), REVISION.c.revision == bindparam("number")
)
_INSERT_RECORDS = RECORD.insert()
_BETWEEN = and_(
    _R.scope == bindparam("of_scope"),
    _R.added_revision > bindparam("since"),
    _R.added_revision <= bindparam("until"),
)
_ALIVE = or_(_R.removed_revision.is_(None), _R.removed_revision > bindparam("until"))
_RECORDS = select(*RECORD_COLUMNS).where(_BETWEEN, _ALIVE).order_by(_R.added_revision, _R.sequence)
_PAGE = (
    select(*RECORD_COLUMNS, _R.added_revision, _R.sequence)
    .where(
        _BETWEEN,
        _ALIVE,
        tuple_(_R.added_revision, _R.sequence)
        > tuple_(bindparam("page_revision"), bindparam("page_sequence")),
    )
    .order_by(_R.added_revision, _R.sequence)
    .limit(bindparam("page_size"))
)
_REMOVED = select(_R.record_id).where(
    _R.scope == bindparam("of_scope"),
    _R.removed_revision > bindparam("since"),
    _R.removed_revision <= bindparam("until"),
    _R.added_revision <= bindparam("since"),
)
_DIGESTS_BY_ID = select(_R.record_id, _R.digest).where(_R.record_id.in_(bindparam("ids", expanding=True)))
_BY_ID = select(*RECORD_COLUMNS).where(_R.record_id.in_(bindparam("ids", expanding=True)))
_OF_STEPS = and_(
    _R.episode_id == bindparam("episode"),
    _R.step_index >= bindparam("first"),
    _R.step_index <= bindparam("last"),
)
_OF_EPISODE = (
    select(*RECORD_COLUMNS)
    .where(_R.episode_id == bindparam("episode"), _R.removed_revision.is_(None))
    .order_by(_R.step_index, _R.sequence)
)
_LAST_LABELING = select(func.max(_R.labeling)).where(_OF_STEPS)
_ALIVE_OF_STEPS = select(_R.record_id).where(
    _OF_STEPS, _R.scope == bindparam("of_scope"), _R.removed_revision.is_(None)
)


def current_revision(connection: Connection, scope: str) -> int:
    """Returns the scope's newest revision; 0 for an unknown scope."""
    return int(connection.execute(_REVISION, {"of_scope": scope}).scalar() or 0)


def next_revision(connection: Connection, scope: str) -> int:
    """Takes the next revision; other writers of the scope wait for this transaction from here on."""
    revision = connection.execute(_RAISE, {"of_scope": scope}).scalar()
    if revision is None:
        row = {"scope": scope, "revision": 0, "floor_revision": 0}
        connection.execute(insert_unless_there(connection, SCOPE), row)
        revision = connection.execute(_RAISE, {"of_scope": scope}).scalar_one()
    return int(revision)


def lock_scope(connection: Connection, scope: str) -> None:
    """Makes other writers of the scope wait until this transaction ends, without taking a revision."""
    connection.execute(
        insert_unless_there(connection, SCOPE), {"scope": scope, "revision": 0, "floor_revision": 0}
    )
    same = update(SCOPE).where(SCOPE.c.scope == scope).values(revision=SCOPE.c.revision)
    connection.execute(same)


def write_revision(
    connection: Connection,
    scope: str,
    *,
    kind: str,
    now: float,
    added: Sequence[Row] = (),
    removed_ids: Sequence[str] = (),
) -> int:
    """Adds and removes records as the scope's next revision and returns it."""
    revision = next_revision(connection, scope)
    chain = DigestChain(digest_of(connection, scope, revision - 1))
    for record in added:
        chain.add(record["record_id"], record["digest"])
    for record_id, digest in sorted(_remove(connection, scope, removed_ids, revision)):
        chain.remove(record_id, digest)
    note_revision(connection, scope, revision, kind, chain, now)
    if added:
        insert_records(connection, added, revision)
    return revision


def note_revision(
    connection: Connection, scope: str, revision: int, kind: str, chain: DigestChain, now: float
) -> None:
    """Writes the row of a revision that has been taken."""
    row = {"scope": scope, "revision": revision, "kind": kind, "digest": chain.hexdigest(), "created_at": now}
    connection.execute(REVISION.insert(), row)


def insert_records(connection: Connection, added: Sequence[Row], revision: int) -> None:
    """Inserts records of a revision that has been taken, in commit order."""
    rows = [{**record, "added_revision": revision, "removed_revision": None} for record in added]
    connection.execute(_INSERT_RECORDS, rows)


def _remove(
    connection: Connection, scope: str, record_ids: Sequence[str], revision: int
) -> list[tuple[str, str]]:
    removed: list[tuple[str, str]] = []
    for chunk in _chunks(record_ids):
        statement = (
            update(RECORD)
            .where(_R.record_id.in_(chunk), _R.scope == scope, _R.removed_revision.is_(None))
            .values(removed_revision=revision)
            .returning(_R.record_id, _R.digest)
        )
        removed.extend((record_id, digest) for record_id, digest in connection.execute(statement))
    return removed


def digest_of(connection: Connection, scope: str, revision: int) -> str:
    """Returns the running digest at a revision; "" at 0."""
    if revision == 0:
        return ""
    digest = connection.execute(_DIGEST, {"of_scope": scope, "number": revision}).scalar()
    if digest is None:
        newest = current_revision(connection, scope)
        raise RevisionGoneError(f"Scope {scope!r} has no revision {revision}; its newest is {newest}.")
    return str(digest)


def last_labeling(connection: Connection, episode_id: str, first: int, last: int) -> int:
    """Returns the highest labeling number among the records of these steps, 0 for none."""
    of_steps = {"episode": episode_id, "first": first, "last": last}
    return int(connection.execute(_LAST_LABELING, of_steps).scalar() or 0)


def alive_ids(connection: Connection, scope: str, episode_id: str, first: int, last: int) -> list[str]:
    """Returns the ids of the records of these steps that are not removed."""
    of_steps = {"of_scope": scope, "episode": episode_id, "first": first, "last": last}
    return list(connection.execute(_ALIVE_OF_STEPS, of_steps).scalars())


def _refuse_below_floor(connection: Connection, scope: str, revision: int) -> None:
    """Call after reading, so that a purge that came in between is noticed."""
    floor = int(connection.execute(_FLOOR, {"of_scope": scope}).scalar() or 0)
    if revision < floor:
        raise RevisionGoneError(
            f"Revision {revision} of scope {scope!r} was purged; revisions from {floor} on are whole. "
            "Rebuild from the newest records."
        )


def read_records(connection: Connection, scope: str, since: int, until: int | None) -> list[Record]:
    """Returns records added after `since` and alive at `until`, in commit order."""
    until = current_revision(connection, scope) if until is None else until
    rows = connection.execute(_RECORDS, {"of_scope": scope, "since": since, "until": until})
    records = [record_from_row(row) for row in rows]
    _refuse_below_floor(connection, scope, until)
    return records


def read_page(
    connection: Connection, scope: str, since: int, until: int, after: tuple[int, int], size: int
) -> list[Sequence[Any]]:
    """Returns up to `size` rows behind the place `after` (revision, sequence), which ends each row."""
    bounds = {"of_scope": scope, "since": since, "until": until, "page_size": size}
    place = {"page_revision": after[0], "page_sequence": after[1]}
    rows: list[Sequence[Any]] = list(connection.execute(_PAGE, {**bounds, **place}))
    _refuse_below_floor(connection, scope, until)
    return rows


def read_changes(connection: Connection, scope: str, since: int, until: int) -> Changes:
    """Returns what happened after `since` and up to `until`."""
    if until < since:
        raise BankError(f"Changes of scope {scope!r} were asked for from {since} back to {until}: swap them.")
    newest = current_revision(connection, scope)
    if until > newest:
        raise RevisionGoneError(f"Scope {scope!r} has no revision {until}; its newest is {newest}.")
    bounds = {"of_scope": scope, "since": since, "until": until}
    added = tuple(record_from_row(row) for row in connection.execute(_RECORDS, bounds))
    removed = tuple(connection.execute(_REMOVED, bounds).scalars())
    _refuse_below_floor(connection, scope, since)
    return Changes(added, removed)


def read_by_id(connection: Connection, record_ids: Sequence[str]) -> dict[str, Record]:
    """Returns the records with these ids; unknown ids are left out."""
    found = {}
    for chunk in _chunks(record_ids):
        for row in connection.execute(_BY_ID, {"ids": chunk}):
            found[row[0]] = record_from_row(row)
    return found


def read_of_episode(connection: Connection, episode_id: str) -> list[Record]:
    """Returns the alive records of an episode, in order of steps."""
    return [record_from_row(row) for row in connection.execute(_OF_EPISODE, {"episode": episode_id})]


def digests_by_id(connection: Connection, record_ids: Sequence[str]) -> dict[str, str]:
    """Returns the content digests of those of the records that the bank holds, removed ones too."""
    found = {}
    for chunk in _chunks(record_ids):
        for record_id, digest in connection.execute(_DIGESTS_BY_ID, {"ids": chunk}):
            found[record_id] = digest
    return found


def _chunks(items: Sequence[str]) -> Iterable[Sequence[str]]:
    return (items[start : start + _IN_CHUNK] for start in range(0, len(items), _IN_CHUNK))
