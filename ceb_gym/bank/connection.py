"""Transactions on a bank's database: locks, forks, and errors as sentences."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from ceb_gym.bank.location import Location, sqlite_uri
from ceb_gym.errors import BankConflictError, BankError, ConfigurationError

_FORK_WAIT_S = 10.0
_WAL_ATTEMPTS = 20

_LOCK_SLICE_S = 1.0

_SQLITE_KINDS: dict[str, dict[str, Any]] = {
    "read": {"bank_sync": None},
    "fast": {"bank_sync": "NORMAL"},
    "durable": {"bank_sync": "FULL"},
}
_POSTGRESQL_KINDS: dict[str, dict[str, Any]] = {
    "read": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
    "fast": {},
    "durable": {},
}

_DISK_FULL = (
    "its disk is full. Free some space: nothing of this write was kept, and what waits for labels "
    "can be labelled again"
)
_SENTENCES = (
    ("disk is full", _DISK_FULL),
    ("no space left", _DISK_FULL),
    ("locked", "another process kept it locked for too long. Try again, or look for a process that hangs"),
    ("readonly", "it is read-only. Make the file and its folder writable, or open it with read_only=True"),
    ("read-only", "it was opened for reading only"),
    (
        "unable to open",
        "it cannot be opened. Check that file and folder can be written, or open it with read_only=True",
    ),
    ("malformed", "the file is damaged. Keep a copy and restore a backup, or try `sqlite3 FILE .recover`"),
    ("not a database", "the file is damaged. Keep a copy and restore a backup"),
    ("disk i/o", "its disk cannot be read or written. Check the disk and the folder"),
    ("no such table", "a table is missing. Keep a copy and restore a backup"),
)


def explained(error: Exception, shown: str) -> BankError:
    """Returns a database error as a sentence that names the bank and what to do."""
    original = getattr(error, "orig", None) or error
    text = str(original).strip().partition("\n")[0]
    if isinstance(error, IntegrityError):
        return BankConflictError(f"Bank {shown} refused a row that does not fit what it holds: {text}.")
    for part, sentence in _SENTENCES:
        if part in text.lower():
            return BankError(f"Bank {shown}: {sentence} ({text}).")
    return BankError(f"Bank {shown} cannot be used: {text or type(original).__name__}.")


class Database:
    """Opens connections when they are needed and runs transactions on them, from any thread.

    No connection crosses a fork: before one, running transactions end and all connections are closed,
    because SQLite's locks are kept per process and a copied connection can damage the file.

    Args:
        location: Where the bank is.
        read_only: Whether every write is refused.
        busy_timeout_s: How long a writer waits for the writers of other processes.
    """

    def __init__(self, location: Location, *, read_only: bool = False, busy_timeout_s: float = 30.0):
        self.location = location
        self.read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._closed = False
        self._inherited: list[Engine] = []  # kept so that a child never closes its parent's connections
        self._reset()
        _watch_forks(self)

    def _reset(self) -> None:
        self._process_id = os.getpid()
        self._engine: Engine | None = None
        self._file_id: tuple[int, int] | None = None  # device and inode of the file that is open
        self._variants: dict[str, Engine] = {}  # of the engine, one for each kind of transaction
        self._gate = threading.Condition()
        self._running = 0
        self._forking = False
        # Writers of one process queue here rather than poll SQLite's lock; memory: has one connection.
        self._write_lock: AbstractContextManager[object] = contextlib.nullcontext()
        self._read_lock: AbstractContextManager[object] = contextlib.nullcontext()
        if self.location.kind != "postgresql":
            self._write_lock = threading.Lock()
        if self.location.kind == "memory":
            self._read_lock = self._write_lock

    @property
    def is_sqlite(self) -> bool:
        """Whether this is SQLite, in a file or in memory."""
        return self.location.kind != "postgresql"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one state of the bank throughout."""
        self._check_process()
        with self._read_lock, self._transaction("read") as connection:
            yield connection

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Connection]:
        """A transaction that is committed when the block ends.

        Args:
            durable: Whether the commit outlives a crash of the machine, which costs one sync of the disk.
                Otherwise it only outlives one of the process; a later durable commit secures it too.
        """
        if self.read_only:
            raise BankError(
                f"Bank {self.location.shown} was opened with read_only=True; nothing was written."
            )
        self._check_process()
        with self._write_lock, self._transaction("durable" if durable else "fast") as connection:
            self._check_file()
            yield connection

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[Connection]:
        with self._gate:
            self._gate.wait_for(lambda: not self._forking)
            self._running += 1
        try:
            with self._engine_for(kind).begin() as connection:
                if kind == "fast" and not self.is_sqlite:
                    connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
                yield connection
        except (SQLAlchemyError, sqlite3.Error, UnicodeError) as error:
            raise explained(error, self.location.shown) from error
        finally:
            with self._gate:
                self._running -= 1
                self._gate.notify_all()

    def _check_file(self) -> None:
        """Refuses to write where the open file is no longer the one at its path: that would damage both."""
        path = self.location.path
        if path is None or self._file_id is None:
            return
        try:
            status = path.stat()
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._file_id:
            what = "deleted" if status is None else "replaced by another file"
            raise BankError(
                f"Bank {self.location.shown} was {what} while it was open; nothing was written. Put the file "
                "back, or close and open the bank again."
            )

    def close(self) -> None:
        """Closes all connections; the next use opens new ones, but a bank in memory is gone."""
        if self.location.kind == "memory" and self._process_id != os.getpid():
            return  # the parent's
        self._check_process()
        with self._gate:
            self._dispose()
            self._closed = True

    def _dispose(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine, self._variants, self._file_id = None, {}, None

    def _check_process(self) -> None:
        if self._process_id == os.getpid():
            return
        if self.location.kind == "memory":
            raise BankError(
                "A memory: bank lives in the process that opened it and cannot be used after a fork; "
                "give a file, such as sqlite:///bank.db."
            )
        self._after_fork_in_child()

    def _before_fork(self) -> None:
        if self._process_id != os.getpid() or self.location.kind == "memory":
            return
        with self._gate:
            self._forking = True
            self._gate.wait_for(lambda: self._running == 0, timeout=_FORK_WAIT_S)
            self._dispose()

    def _after_fork_in_child(self) -> None:
        if self.location.kind != "memory":
            if self._engine is not None:
                self._inherited.append(self._engine)
            self._reset()

    def _after_fork_in_parent(self) -> None:
        with self._gate:
            self._forking = False
            self._gate.notify_all()

    def _engine_for(self, kind: str) -> Engine:
        with self._gate:
            if self._engine is None:
                self._engine = self._open()
                self._variants = {
                    kind: self._engine.execution_options(**options)
                    for kind, options in (_SQLITE_KINDS if self.is_sqlite else _POSTGRESQL_KINDS).items()
                }
            return self._variants[kind]

    def _open(self) -> Engine:
        if self.location.kind == "postgresql":
            return self._postgresql_engine()
        if self.location.kind == "memory" and self._closed:
            raise BankError("This memory: bank was closed, and its content went with it.")
        return self._sqlite_engine()

    def _sqlite_engine(self) -> Engine:
        in_memory = self.location.kind == "memory"
        engine = create_engine(
            "sqlite+pysqlite://",
            creator=self._sqlite_connection,
            poolclass=StaticPool if in_memory else QueuePool,
            hide_parameters=True,
        )

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            raw = connection.connection.driver_connection
            sync = connection.get_execution_options()["bank_sync"]
            assert isinstance(raw, sqlite3.Connection)
            if sync is None:
                raw.execute("BEGIN")
            else:
                raw.execute(f"PRAGMA synchronous={sync}")
                self._begin_writing(raw)

        return engine

    def _begin_writing(self, raw: sqlite3.Connection) -> None:
        """Takes SQLite's write lock at the start: a transaction that has read already cannot wait for it.

        SQLite waits, in slices, because it hears no Ctrl-C while it does.
        """
        deadline = time.monotonic() + self._busy_timeout_s
        raw.execute(f"PRAGMA busy_timeout={_milliseconds(min(_LOCK_SLICE_S, self._busy_timeout_s))}")
        try:
            while True:
                try:
                    raw.execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                        raise
        finally:
            raw.execute(f"PRAGMA busy_timeout={_milliseconds(self._busy_timeout_s)}")

    def _sqlite_connection(self) -> sqlite3.Connection:
        path = self.location.path
        target = ":memory:" if path is None else sqlite_uri(path, read_only=self.read_only)
        connection = sqlite3.connect(
            target,
            uri=path is not None,
            timeout=self._busy_timeout_s,
            isolation_level=None,  # transactions are begun by hand: Python's own are begun too late
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            connection.execute("PRAGMA foreign_keys=ON")
            if path is not None and self._file_id is None:
                status = path.stat()
                self._file_id = (status.st_dev, status.st_ino)
            if path is not None and not self.read_only and path.stat().st_size:
                _use_wal(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _postgresql_engine(self) -> Engine:
        assert self.location.url is not None
        try:
            return create_engine(
                self.location.url,
                hide_parameters=True,
                pool_pre_ping=True,  # labelling can take minutes, in which idle connections are cut
                connect_args={} if "connect_timeout" in self.location.url.query else {"connect_timeout": 10},
            )
        except ImportError as error:
            raise ConfigurationError(
                f"Bank {self.location.shown} needs the PostgreSQL driver: pip install 'ceb-gym[postgres]'."
            ) from error


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Lets readers and a writer work side by side; kept in the file, so mostly there already."""
    for _ in range(_WAL_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                return  # such as a read-only file: what can be read is read
        time.sleep(0.02)  # SQLite does not wait for others here; without WAL the bank works, only slower


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_databases_lock = threading.Lock()  # held during a fork, so that a child never finds it taken
_hooks_placed = threading.Event()


def _watch_forks(database: Database) -> None:
    with _databases_lock:
        _databases.add(database)
        if not _hooks_placed.is_set() and hasattr(os, "register_at_fork"):
            _hooks_placed.set()
            os.register_at_fork(
                before=_before_fork,
                after_in_parent=_after_fork_in_parent,
                after_in_child=_after_fork_in_child,
            )


def _before_fork() -> None:
    _databases_lock.acquire()
    for database in list(_databases):
        database._before_fork()


def _after_fork_in_parent() -> None:
    for database in list(_databases):
        database._after_fork_in_parent()
    _databases_lock.release()


def _after_fork_in_child() -> None:
    for database in list(_databases):
        database._after_fork_in_child()
    _databases_lock.release()
