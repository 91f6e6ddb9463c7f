"""Statements on trajectories: storing, claiming, reading. Each runs inside a caller's transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Insert, Table, and_, bindparam, delete, func, or_, select, true, update
from sqlalchemy.dialects import postgresql, sqlite

from ceb_gym.bank.rows import Row, step_from_row
from ceb_gym.bank.schema import INTENT, STEP, STEP_COLUMNS, TRAJECTORY
from ceb_gym.errors import BankConflictError, BankError
from ceb_gym.types import Trajectory, TrajectoryKey

_T = TRAJECTORY.c

_STEP_INSERT = STEP.insert()
_STORED_DIGEST = select(_T.digest).where(
    _T.episode_id == bindparam("episode"), _T.segment == bindparam("number")
)
_FOLLOW = (
    update(TRAJECTORY)
    .where(_T.episode_id == bindparam("episode"), _T.status == "open")
    .values(status=bindparam("new_status"))
)
_FORGET_INTENTS = delete(INTENT).where(
    INTENT.c.episode_id == bindparam("episode"), INTENT.c.step_index <= bindparam("last")
)
_FREE = or_(_T.claim_token.is_(None), _T.claim_until <= bindparam("now"))
_BY_KEY = and_(_T.episode_id == bindparam("episode"), _T.segment == bindparam("number"))
_CLAIM = (
    update(TRAJECTORY)
    .where(_BY_KEY, _FREE, _T.status.in_(["pending", "held"]))
    .values(claim_token=bindparam("token"), claim_until=bindparam("until"))
)
_CLAIM_AGAIN = (
    update(TRAJECTORY)
    .where(_BY_KEY, _FREE, _T.status != "open")
    .values(claim_token=bindparam("token"), claim_until=bindparam("until"))
)
_RELEASE = (
    update(TRAJECTORY)
    .where(_BY_KEY, _T.claim_token == bindparam("token"))
    .values(claim_token=None, claim_until=None)
)
_EPISODE = select(TRAJECTORY).where(_T.episode_id == bindparam("episode")).order_by(_T.segment)
_STEPS = (
    select(STEP.c.trajectory_id, *STEP_COLUMNS)
    .where(STEP.c.trajectory_id.in_(bindparam("ids", expanding=True)))
    .order_by(STEP.c.trajectory_id, STEP.c.step_index)
)
_NEWEST_FINISHED = (
    select(_T.episode_id, _T.segment, _T.rewards)
    .where(_T.scope == bindparam("of_scope"), _T.finished == true())
    .order_by(_T.trajectory_id.desc())
    .limit(bindparam("newest"))
)
_NEWEST_FINISHED_BEFORE = _NEWEST_FINISHED.where(
    _T.trajectory_id
    < select(func.min(_T.trajectory_id)).where(_T.episode_id == bindparam("before")).scalar_subquery()
)
_EARLIER_REWARDS = (
    select(_T.episode_id, _T.segment, _T.rewards)
    .where(_T.episode_id.in_(bindparam("episodes", expanding=True)))
    .order_by(_T.segment)
)


def insert_unless_there(connection: Connection, table: Table) -> Insert:
    """Returns an insert that does nothing where the primary key or a unique column is taken."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def add(connection: Connection, head: Row, steps: list[Row], status: str) -> None:
    """Stores a trajectory unless the same is there already."""
    if head["segment"] > 0:
        _refuse_another_scope(connection, head)
    statement = insert_unless_there(connection, TRAJECTORY).returning(_T.trajectory_id)
    trajectory_id = connection.execute(statement, {**head, "status": status}).scalar()
    key = {"episode": head["episode_id"], "number": head["segment"]}
    if trajectory_id is None:
        if connection.execute(_STORED_DIGEST, key).scalar() != head["digest"]:
            raise BankConflictError(
                f"Episode {head['episode_id']!r}, segment {head['segment']}, is in the bank with other "
                "content. Give the new episode another id."
            )
        return
    if steps:
        connection.execute(_STEP_INSERT, [{"trajectory_id": trajectory_id, **row} for row in steps])
    if status != "open" and head["segment"] > 0:
        connection.execute(_FOLLOW, {"episode": head["episode_id"], "new_status": status})
    connection.execute(_FORGET_INTENTS, {"episode": head["episode_id"], "last": head["last_step"]})


def _refuse_another_scope(connection: Connection, head: Row) -> None:
    """An episode is read as one, so a segment of another scope would carry its content across."""
    scopes = select(_T.scope).where(_T.episode_id == head["episode_id"]).distinct()
    for scope in connection.execute(scopes).scalars():
        if scope != head["scope"]:
            raise BankConflictError(
                f"Episode {head['episode_id']!r} began in scope {scope!r}; its segment {head['segment']} "
                f"cannot be stored in {head['scope']!r}."
            )


def note_intent(connection: Connection, row: Row) -> None:
    """Writes the intent row of a step over an older one."""
    key = (INTENT.c.episode_id == row["episode_id"], INTENT.c.step_index == row["step_index"])
    connection.execute(delete(INTENT).where(*key))
    connection.execute(INTENT.insert(), row)


def waiting(connection: Connection, scope: str | None, *, held: bool) -> list[TrajectoryKey]:
    """Returns the keys of what waits for labels, oldest first."""
    query = select(_T.episode_id, _T.segment).where(
        _T.status.in_(["pending", "held"] if held else ["pending"])
    )
    if scope is not None:
        query = query.where(_T.scope == scope)
    return [TrajectoryKey(*row) for row in connection.execute(query.order_by(_T.trajectory_id))]


def take_claim(
    connection: Connection, key: TrajectoryKey, token: str, *, now: float, until: float, relabel: bool
) -> bool:
    """Returns whether the trajectory is now claimed with this token."""
    of_key = {"episode": key.episode_id, "number": key.segment}
    statement = _CLAIM_AGAIN if relabel else _CLAIM
    result = connection.execute(statement, {**of_key, "token": token, "now": now, "until": until})
    if result.rowcount:
        return True
    if connection.execute(_STORED_DIGEST, of_key).scalar() is None:
        raise BankError(f"The bank holds no episode {key.episode_id!r} with segment {key.segment}.")
    return False


def drop_claim(connection: Connection, key: TrajectoryKey, token: str) -> None:
    """Gives a claim back, if it is still held."""
    connection.execute(_RELEASE, {"episode": key.episode_id, "number": key.segment, "token": token})


def close_open(connection: Connection, scope: str | None, status: str, before: float | None) -> int:
    """Gives open segments the status; returns how many."""
    statement = update(TRAJECTORY).where(_T.status == "open").values(status=status)
    if scope is not None:
        statement = statement.where(_T.scope == scope)
    if before is not None:
        statement = statement.where(_T.created_at < before)
    return connection.execute(statement).rowcount


def load(connection: Connection, episode_id: str, until_segment: int | None) -> Trajectory:
    """Returns the segments of an episode as one trajectory."""
    heads = connection.execute(_EPISODE, {"episode": episode_id}).all()
    if until_segment is not None:
        heads = [head for head in heads if head.segment <= until_segment]
    if not heads:
        raise BankError(f"The bank holds no episode {episode_id!r}.")
    rows = connection.execute(_STEPS, {"ids": [head.trajectory_id for head in heads]}).all()
    order = {head.trajectory_id: position for position, head in enumerate(heads)}
    rows = sorted(rows, key=lambda row: order[row.trajectory_id])
    first, last = heads[0], heads[-1]
    return Trajectory(
        episode_id=episode_id,
        env_id=first.env_id,
        scope=first.scope,
        task=first.task,
        steps=tuple(step_from_row(row[1:]) for row in rows),
        ending=last.ending,
        success=last.success,
        segment=0,
        initial_reward=first.initial_reward,
        created_at=first.created_at,
    )


def newest_rewards(
    connection: Connection, scope: str, limit: int, before: str | None = None
) -> list[tuple[float, ...]]:
    """Returns the rewards of the newest finished episodes (stored before a given one), newest first."""
    values = {"of_scope": scope, "newest": limit}
    if before is None:
        rows: Sequence[Any] = connection.execute(_NEWEST_FINISHED, values).all()
    else:
        rows = connection.execute(_NEWEST_FINISHED_BEFORE, {**values, "before": before}).all()
    rewards: dict[str, list[float]] = {row.episode_id: [] for row in rows}
    long = [row.episode_id for row in rows if row.segment > 0]
    if long:
        segments = connection.execute(_EARLIER_REWARDS, {"episodes": long}).all()
        rows = [row for row in rows if row.segment == 0] + list(segments)
    for row in rows:
        rewards[row.episode_id].extend(json.loads(row.rewards))
    return [tuple(values) for values in rewards.values()]
