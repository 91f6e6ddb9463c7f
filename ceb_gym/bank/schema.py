"""The tables of a bank, the same for SQLite and PostgreSQL.

Rows of `record` are never changed but for `removed_revision`: a record is alive at revision r of its scope
when `added_revision <= r` and `removed_revision` is null or greater than r.
"""

from __future__ import annotations

from dataclasses import fields

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from ceb_gym.types import Record, Step

APPLICATION_ID = 0x43454267
"""Marks an SQLite file as a bank (bytes 68 to 71 of the file), so that no other file is ever written to."""

METADATA = MetaData()

_ROW_ID = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only for INTEGER


META = Table(
    "meta",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

COUNTER = Table(
    "counter",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

SCOPE = Table(
    "scope",
    METADATA,
    Column("scope", Text, primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("floor_revision", BigInteger, nullable=False),
)

REVISION = Table(
    "revision",
    METADATA,
    Column("scope", Text, ForeignKey("scope.scope"), primary_key=True),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

TRAJECTORY = Table(
    "trajectory",
    METADATA,
    Column("trajectory_id", _ROW_ID, primary_key=True),
    Column("episode_id", Text, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("scope", Text, nullable=False),
    Column("env_id", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("ending", Text, nullable=False),
    Column("success", Boolean),
    Column("initial_reward", Double),
    Column("created_at", Double, nullable=False),
    Column("status", Text, nullable=False),
    Column("claim_token", Text),
    Column("claim_until", Double),
    Column("finished", Boolean, nullable=False),  # the last segment of an episode that ran to its end
    Column("first_step", Integer, nullable=False),
    Column("last_step", Integer, nullable=False),  # before first_step where there is no step
    Column("rewards", Text, nullable=False),  # of the executed steps, as JSON: read at every episode's end
    Column("digest", Text, nullable=False),
    UniqueConstraint("episode_id", "segment"),
    Index("trajectory_by_status", "status", "scope", "trajectory_id"),
    Index("trajectory_by_scope", "scope", "finished", "trajectory_id"),
)

STEP = Table(
    "step",
    METADATA,
    Column("trajectory_id", _ROW_ID, ForeignKey("trajectory.trajectory_id"), primary_key=True),
    Column("step_index", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("proposed", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("outcome", Text),
    Column("reward", Double),
    Column("executed", Boolean, nullable=False),
    Column("confidence", Double),
    Column("decision", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("propensity", Double, nullable=False),
    Column("repeated", Boolean, nullable=False),
    Column("critic", Text, nullable=False),
    Column("features", Text),  # a JSON object, null for none
    Column("rationale", Text, nullable=False),
)

LABELING = Table(
    "labeling",
    METADATA,
    Column("labeling_id", _ROW_ID, primary_key=True),
    Column("trajectory_id", _ROW_ID, ForeignKey("trajectory.trajectory_id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("labeler", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    UniqueConstraint("trajectory_id", "number"),
)

VOTE = Table(
    "vote",
    METADATA,
    Column("labeling_id", _ROW_ID, ForeignKey("labeling.labeling_id"), primary_key=True),
    Column("step_index", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("seed", BigInteger),
    Column("model", Text, nullable=False),
    Column("label", Boolean),
    Column("text", Text, nullable=False),
)

RECORD = Table(
    "record",
    METADATA,
    Column("sequence", _ROW_ID, primary_key=True),  # order within one revision
    Column("record_id", Text, nullable=False, unique=True),
    Column("scope", Text, ForeignKey("scope.scope"), nullable=False),
    Column("episode_id", Text, nullable=False),
    Column("step_index", Integer, nullable=False),
    Column("task", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("label", Boolean, nullable=False),
    Column("vote_share", Double, nullable=False),
    Column("votes", Integer, nullable=False),
    Column("confidence", Double),
    Column("agrees", Boolean),
    Column("repeated", Boolean, nullable=False),
    Column("critic", Text, nullable=False),
    Column("labeler", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("features", Text),
    Column("labeling", Integer, nullable=False),  # the last part of record_id
    Column("digest", Text, nullable=False),  # of the content
    Column("added_revision", BigInteger, nullable=False),
    Column("removed_revision", BigInteger),
    Index("record_by_addition", "scope", "added_revision", "sequence"),
    Index("record_by_removal", "scope", "removed_revision"),
    Index("record_by_step", "episode_id", "step_index"),
)

SETTING = Table(
    "setting",
    METADATA,
    Column("scope", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

INTENT = Table(
    "intent",
    METADATA,
    Column("episode_id", Text, primary_key=True),
    Column("step_index", Integer, primary_key=True),
    Column("scope", Text, nullable=False),
    Column("env_id", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

RECORD_COLUMNS = tuple(RECORD.c[field.name] for field in fields(Record))
"""The columns that make a `Record`, in the order of its fields."""

STEP_COLUMNS = tuple(STEP.c["step_index" if field.name == "index" else field.name] for field in fields(Step))
"""The columns that make a `Step`, in the order of its fields."""
