"""`SqlBank`: the bank on SQLite or PostgreSQL."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import bindparam, select, update

from ceb_gym.bank import commits, episodes, labeling, maintenance
from ceb_gym.bank.connection import Database
from ceb_gym.bank.imports import Importer
from ceb_gym.bank.location import parse_location
from ceb_gym.bank.maintenance import Intent, ScopeStats
from ceb_gym.bank.migrations import prepare
from ceb_gym.bank.rows import (
    checked_name,
    checked_number,
    checked_text,
    record_from_row,
    step_to_row,
    trajectory_to_rows,
)
from ceb_gym.bank.schema import COUNTER, META, SETTING
from ceb_gym.errors import BankError
from ceb_gym.types import (
    Changes,
    Claim,
    Record,
    Step,
    StepLabel,
    Trajectory,
    TrajectoryKey,
    TrajectoryStatus,
)

_SETTING = select(SETTING.c.value).where(
    SETTING.c.scope == bindparam("of_scope"), SETTING.c.name == bindparam("of_name")
)
_NEXT_RUN = (
    update(COUNTER)
    .where(COUNTER.c.name == "run")
    .values(value=COUNTER.c.value + 1)
    .returning(COUNTER.c.value)
)


class SqlBank:
    """A bank in an SQLite file, in memory, or in a PostgreSQL database. Safe to share between threads.

    Processes share a bank by its URL. A process that was forked uses connections of its own.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `memory:` (private to this object) or
            `postgresql+psycopg://user@host/name`. A file that does not exist is created, a folder is not.
        read_only: Whether every write is refused.
        clock: Seconds since the epoch; decides when claims run out.

    Raises:
        ConfigurationError: If the URL cannot be understood or its driver is not installed.
        BankError: If the bank cannot be opened.
        BankSchemaError: If there is something else at that place, or a bank of another version.
    """

    def __init__(self, url: str, *, read_only: bool = False, clock: Callable[[], float] = time.time):
        self._database = Database(parse_location(url), read_only=read_only)
        self._clock = clock
        self._read_only_runs = 0
        try:
            prepare(self._database)
            with self._database.read() as connection:
                meta = {row.name: row.value for row in connection.execute(select(META))}
        except BaseException:
            self._database.close()
            raise
        self._bank_id: str = meta["bank_id"]
        self._run_prefix: str = meta["run_prefix"]

    @property
    def bank_id(self) -> str:
        """Identity of the stored bank; a copied file keeps it."""
        return self._bank_id

    @property
    def url(self) -> str:
        """Where the bank is, absolute and without passwords."""
        return self._database.location.shown

    @property
    def read_only(self) -> bool:
        """Whether every write is refused."""
        return self._database.read_only

    def new_run(self) -> str:
        """Returns a run id that this bank never gave before.

        A read-only bank, which will store nothing of the run, counts by itself.
        """
        if self.read_only:
            self._read_only_runs += 1
            return f"{self._run_prefix}-read{self._read_only_runs}"
        with self._database.write() as connection:
            number = connection.execute(_NEXT_RUN).scalar_one()
        return f"{self._run_prefix}-{number}"

    def setting(self, scope: str, name: str) -> str | None:
        """Returns the value, or None where it was never set."""
        with self._database.read() as connection:
            value: str | None = connection.execute(_SETTING, {"of_scope": scope, "of_name": name}).scalar()
        return value

    def put_setting(self, scope: str, name: str, value: str) -> str:
        """Stores the value unless there is one; returns the value that holds."""
        row = {
            "scope": checked_name(scope, "Scope"),
            "name": checked_name(name, "Setting name"),
            "value": checked_text(value, f"Setting {name!r}"),
        }
        with self._database.write() as connection:
            connection.execute(episodes.insert_unless_there(connection, SETTING), row)
            held = connection.execute(_SETTING, {"of_scope": scope, "of_name": name}).scalar_one()
        return str(held)

    # Episodes

    def add_trajectory(self, trajectory: Trajectory, *, status: TrajectoryStatus = "pending") -> None:
        """Stores a trajectory; storing the same again does nothing, whatever its status is by then.

        Raises:
            BankConflictError: If the key is taken by other content.
            BankError: If a number is not finite, or a name cannot be stored; nothing is written then.
        """
        if status not in ("open", "pending", "held"):
            raise BankError(f"A trajectory is stored open, pending or held, not {status!r}.")
        head, steps = trajectory_to_rows(trajectory)
        with self._database.write() as connection:
            episodes.add(connection, head, steps, status)

    def journal(self, trajectory: Trajectory, step: Step) -> None:
        """Notes what is about to be executed; forgotten when the step arrives by `add_trajectory`."""
        episode = checked_name(trajectory.episode_id, "Episode id")
        content = step_to_row(step, f"episode {episode!r}")
        row = {
            "episode_id": episode,
            "step_index": content["step_index"],
            "scope": checked_name(trajectory.scope, "Scope"),
            "env_id": checked_text(trajectory.env_id, "The env_id"),
            "task": checked_text(trajectory.task, "The task"),
            "state": content["state"],
            "action": content["action"],
            "created_at": self._clock(),
        }
        with self._database.write() as connection:
            episodes.note_intent(connection, row)

    def intents(self) -> list[Intent]:
        """Returns what was about to be executed when an episode was cut off, oldest first."""
        with self._database.read() as connection:
            return maintenance.read_intents(connection)

    def pending(self, scope: str | None = None, *, held: bool = False) -> list[TrajectoryKey]:
        """Returns the trajectories that wait for labels, oldest first; with `held` also those held back."""
        with self._database.read() as connection:
            return episodes.waiting(connection, scope, held=held)

    def claim(
        self,
        key: TrajectoryKey,
        *,
        lease_s: float = 600.0,
        relabel: bool = False,
        take_over: bool = False,
    ) -> Claim | None:
        """Returns the right to label, or None where it is labelled, open, or another's claim still holds.

        Args:
            key: A pending or held trajectory.
            lease_s: After how many seconds another may claim it.
            relabel: Whether a labelled trajectory can be claimed too; its new records replace the old ones.
            take_over: Whether to take it from another's claim that still holds, whose process is dead.

        Raises:
            BankError: If the bank does not hold the trajectory.
        """
        now = self._clock()
        claim = Claim(TrajectoryKey(*key), secrets.token_hex(8), now + checked_number(lease_s, "The lease"))
        with self._database.write(durable=False) as connection:
            taken = episodes.take_claim(
                connection,
                claim.key,
                claim.token,
                now=math.inf if take_over else now,
                until=claim.until,
                relabel=relabel,
            )
        return claim if taken else None

    def release(self, claim: Claim) -> None:
        """Gives the right back without labels."""
        with self._database.write(durable=False) as connection:
            episodes.drop_claim(connection, claim.key, claim.token)

    def end_open(
        self, scope: str | None = None, *, status: TrajectoryStatus = "held", before: float | None = None
    ) -> int:
        """Gives segments of episodes that will not go on, after a crash, a status; returns how many.

        Args:
            scope: Only of this scope.
            status: "held" or "pending".
            before: Only those created before this time, in seconds since the epoch.
        """
        if status not in ("held", "pending"):
            raise BankError(f"Open segments become held or pending, not {status!r}.")
        with self._database.write() as connection:
            return episodes.close_open(connection, scope, status, before)

    def episode(self, episode_id: str, *, until_segment: int | None = None) -> Trajectory:
        """Returns all stored segments of an episode (up to the given one) as one trajectory, of segment 0."""
        with self._database.read() as connection:
            return episodes.load(connection, episode_id, until_segment)

    def past_rewards(self, scope: str, limit: int, *, before: str | None = None) -> list[tuple[float, ...]]:
        """Returns the executed steps' rewards of the newest finished episodes, newest first.

        With `before`, only episodes stored before the one with this id count.
        """
        with self._database.read() as connection:
            return episodes.newest_rewards(connection, scope, limit, before)

    # Records

    def commit_labels(self, claim: Claim, labels: Sequence[StepLabel], labeler: str) -> int | None:
        """Stores labels, votes and records as the scope's next revision and returns it.

        Only executed steps of the claimed segment with a label become records. Where that is none and no
        earlier record is replaced, the trajectory is closed and the newest revision returned. Returns None,
        and writes nothing, where the claim was lost.
        """
        with self._database.write() as connection:
            return labeling.commit(connection, claim, labels, labeler, self._clock())

    def revision(self, scope: str) -> int:
        """Returns the scope's newest revision; 0 for a scope without records."""
        with self._database.read() as connection:
            return commits.current_revision(connection, scope)

    def digest(self, scope: str, revision: int) -> str:
        """Returns the running digest of all commits of the scope up to the revision ("" at 0)."""
        with self._database.read() as connection:
            return commits.digest_of(connection, scope, revision)

    def records(self, scope: str, *, since: int = 0, until: int | None = None) -> list[Record]:
        """Returns records added after `since` and alive at `until` (default: now), in commit order."""
        with self._database.read() as connection:
            return commits.read_records(connection, scope, since, until)

    def iter_records(
        self, scope: str, *, until: int | None = None, page: int = 1000
    ) -> Iterator[tuple[int, Record]]:
        """Yields the records alive at `until` with the revision that added them, in commit order.

        Reads a page at a time, so that a large bank need not fit into memory and no transaction stays open.
        """
        until = self.revision(scope) if until is None else until
        place = (0, 0)
        while True:
            with self._database.read() as connection:
                rows = commits.read_page(connection, scope, 0, until, place, page)
            for *columns, added, _ in rows:
                yield added, record_from_row(columns)
            if len(rows) < page:
                return
            place = (rows[-1][-2], rows[-1][-1])

    def records_by_id(self, record_ids: Sequence[str]) -> dict[str, Record]:
        """Returns the records with these ids, removed ones too (until they are purged)."""
        if not record_ids:
            return {}
        with self._database.read() as connection:
            return commits.read_by_id(connection, record_ids)

    def records_of_episode(self, episode_id: str) -> list[Record]:
        """Returns the episode's records that are not removed, in order of steps."""
        with self._database.read() as connection:
            return commits.read_of_episode(connection, episode_id)

    def changes(self, scope: str, since: int, until: int) -> Changes:
        """Returns what was added and removed. Raises RevisionGoneError below the scope's floor."""
        with self._database.read() as connection:
            return commits.read_changes(connection, scope, since, until)

    @contextmanager
    def importing(self, scopes: Iterable[str]) -> Iterator[Importer]:
        """A transaction that takes records from elsewhere as the next revision of each of the scopes.

        Nothing else of the bank can be used inside.

        Args:
            scopes: All scopes that the records belong to.
        """
        with self._database.write() as connection:
            importer = Importer(connection, scopes, self._clock())
            yield importer
            importer.finish()

    # Housekeeping

    def evict(self, scope: str, record_ids: Sequence[str]) -> int:
        """Removes these records of the scope as its next revision, and returns that or the newest."""
        with self._database.write() as connection:
            return maintenance.evict(connection, scope, record_ids, self._clock())

    def prune(self, scope: str, *, keep: int | None = None, before: float | None = None) -> int:
        """Removes old records as the scope's next revision; returns how many.

        Args:
            scope: Which scope.
            keep: Keep this many of the newest records.
            before: Remove those created before this time, in seconds since the epoch.
        """
        with self._database.write() as connection:
            return maintenance.prune(connection, scope, keep=keep, before=before, now=self._clock())

    def purge(self, scope: str) -> int:
        """Deletes removed records for good, raises the scope's floor, and returns how many it deleted."""
        with self._database.write() as connection:
            return maintenance.purge(connection, scope)

    def forget_intents(self) -> int:
        """Deletes all intents left behind; returns how many."""
        with self._database.write() as connection:
            return maintenance.delete_intents(connection)

    def scopes(self) -> list[str]:
        """Returns all scopes with records or episodes, sorted."""
        with self._database.read() as connection:
            return maintenance.read_scopes(connection)

    def stats(self, scope: str) -> ScopeStats:
        """Returns counts of one scope."""
        with self._database.read() as connection:
            return maintenance.read_stats(connection, scope)

    def close(self) -> None:
        """Closes all connections. A later use opens new ones, but a bank in memory is gone."""
        self._database.close()
