"""Statements that look after a bank: removing records, counting, and what a crash left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, case, delete, func, select, update

from ceb_gym.bank import commits
from ceb_gym.bank.schema import INTENT, RECORD, REVISION, SCOPE, TRAJECTORY
from ceb_gym.errors import BankError

_R = RECORD.c


@dataclass(frozen=True, slots=True)
class Intent:
    """An action that was about to be executed, of an episode that never arrived.

    Attributes:
        created_at: When, in seconds since the epoch.
    """

    episode_id: str
    step_index: int
    scope: str
    env_id: str
    task: str
    state: str
    action: str
    created_at: float


@dataclass(frozen=True, slots=True)
class ScopeStats:
    """Counts of one scope.

    Attributes:
        floor_revision: The oldest revision that is still whole.
        revisions: Number of revisions by kind (labels, relabel, evict, import).
        trajectories: Number of stored trajectories by status.
        productive: Number of alive records labelled productive.
        unproductive: Number of alive records labelled unproductive.
        removed: Number of removed records that are not yet purged.
        mean_vote_margin: Mean of |2 x vote share - 1| over alive records, in [0, 1]; None without records.
        intents: Number of intents left behind.
    """

    scope: str
    revision: int
    floor_revision: int
    revisions: dict[str, int]
    trajectories: dict[str, int]
    productive: int
    unproductive: int
    removed: int
    mean_vote_margin: float | None
    intents: int

    @property
    def records(self) -> int:
        """Number of alive records."""
        return self.productive + self.unproductive

    @property
    def positive_share(self) -> float | None:
        """Share of alive records labelled productive; None without records."""
        return self.productive / self.records if self.records else None

    def as_dict(self) -> dict[str, Any]:
        """Returns all counts as plain data."""
        return {**asdict(self), "records": self.records, "positive_share": self.positive_share}


def evict(connection: Connection, scope: str, record_ids: Sequence[str], now: float) -> int:
    """Removes those of the records that are alive; without any there is no new revision."""
    wanted = set(record_ids)
    # The scope's lock comes first, so that what is alive now is alive when it is removed.
    commits.lock_scope(connection, scope)
    alive = [row[0] for row in connection.execute(_alive(scope)) if row[0] in wanted]
    return _write(connection, scope, alive, now)


def prune(connection: Connection, scope: str, *, keep: int | None, before: float | None, now: float) -> int:
    """Removes all but the newest records, or those from before a time; returns how many."""
    if (keep is None) == (before is None):
        raise BankError("Pruning takes either a number of records to keep or a time, not both or none.")
    if keep is not None and keep < 0:
        raise BankError(f"A bank cannot keep {keep} records; give 0 or more.")
    commits.lock_scope(connection, scope)
    rows = connection.execute(_alive(scope)).all()
    if keep is not None:
        doomed = [row[0] for row in rows[: max(len(rows) - keep, 0)]]
    else:
        doomed = [row[0] for row in rows if row[1] < before]
    _write(connection, scope, doomed, now)
    return len(doomed)


def _alive(scope: str) -> Any:
    return (
        select(_R.record_id, _R.created_at)
        .where(_R.scope == scope, _R.removed_revision.is_(None))
        .order_by(_R.added_revision, _R.sequence)
    )


def _write(connection: Connection, scope: str, doomed: Sequence[str], now: float) -> int:
    if not doomed:
        return commits.current_revision(connection, scope)
    return commits.write_revision(connection, scope, kind="evict", now=now, removed_ids=doomed)


def purge(connection: Connection, scope: str) -> int:
    """Deletes removed records; revisions before the last removal can then no longer be read."""
    commits.lock_scope(connection, scope)
    gone = (_R.scope == scope, _R.removed_revision.is_not(None))
    floor = connection.execute(select(func.max(_R.removed_revision)).where(*gone)).scalar()
    if floor is None:
        return 0
    deleted = connection.execute(delete(RECORD).where(*gone)).rowcount
    connection.execute(update(SCOPE).where(SCOPE.c.scope == scope).values(floor_revision=floor))
    return deleted


def read_intents(connection: Connection) -> list[Intent]:
    """Returns all intents, oldest first."""
    query = select(INTENT).order_by(INTENT.c.created_at, INTENT.c.episode_id, INTENT.c.step_index)
    return [Intent(**row._mapping) for row in connection.execute(query)]


def delete_intents(connection: Connection) -> int:
    """Deletes all intents."""
    return connection.execute(delete(INTENT)).rowcount


def read_scopes(connection: Connection) -> list[str]:
    """Returns the scopes of records and of trajectories."""
    both = select(SCOPE.c.scope).where(SCOPE.c.revision > 0).union(select(TRAJECTORY.c.scope))
    return sorted(connection.execute(both).scalars())


def read_stats(connection: Connection, scope: str) -> ScopeStats:
    """Counts what the scope holds."""
    head = connection.execute(select(SCOPE).where(SCOPE.c.scope == scope)).one_or_none()
    alive = _R.removed_revision.is_(None)
    share = case((alive, _R.vote_share), else_=None)
    counts = connection.execute(
        select(
            func.count(case((alive & _R.label, 1))),
            func.count(case((alive & ~_R.label, 1))),
            func.count(case((~alive, 1))),
            func.avg(func.abs(2 * share - 1)),
        ).where(_R.scope == scope)
    ).one()
    margin = None if counts[3] is None else float(counts[3])
    intents = select(func.count()).select_from(INTENT).where(INTENT.c.scope == scope)
    return ScopeStats(
        scope=scope,
        revision=head.revision if head else 0,
        floor_revision=head.floor_revision if head else 0,
        revisions=_grouped(connection, REVISION.c.kind, REVISION.c.scope == scope),
        trajectories=_grouped(connection, TRAJECTORY.c.status, TRAJECTORY.c.scope == scope),
        productive=counts[0],
        unproductive=counts[1],
        removed=counts[2],
        mean_vote_margin=margin,
        intents=connection.execute(intents).scalar_one(),
    )


def _grouped(connection: Connection, column: Any, condition: Any) -> dict[str, int]:
    query = select(column, func.count()).where(condition).group_by(column).order_by(column)
    return {row[0]: row[1] for row in connection.execute(query)}
