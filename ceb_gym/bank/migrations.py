"""The bank's schema through time: named steps, recorded in the bank.

A new bank gets today's tables at once and counts all steps as done. An older one is brought up to date by
`migrate`, never by opening it, because the programs of other people may still be using it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable

from sqlalchemy import Connection, inspect, select, text

from ceb_gym.bank.connection import Database
from ceb_gym.bank.location import file_is_new, parse_location
from ceb_gym.bank.schema import APPLICATION_ID, COUNTER, META, METADATA
from ceb_gym.errors import BankSchemaError

Migration = tuple[str, Callable[[Connection], None]]

_CREATION_LOCK = 0x434542  # any fixed number: an advisory lock of PostgreSQL


def _first_schema(connection: Connection) -> None:
    METADATA.create_all(connection)


MIGRATIONS: tuple[Migration, ...] = (("0001_first_schema", _first_schema),)
"""All steps, oldest first. Steps are only ever appended."""


def prepare(database: Database) -> None:
    """Creates the bank where there is none, and otherwise checks that this version can use it.

    Raises:
        BankError: If it cannot be opened or created.
        BankSchemaError: If it is something else, or a bank of another version.
    """
    location = database.location
    new = location.kind == "memory"
    if location.path is not None:
        new = file_is_new(location.path, read_only=database.read_only)
    done = None
    if not new:
        with database.read() as connection:
            done = _done(connection, location.shown)
    if done is None:
        with database.write() as connection:
            done = _create_or_look(connection, database)
        if location.path is not None:
            database.close()  # so that the next connection finds a file that can use WAL
    _check(done, location.shown)


def migrate(url: str) -> list[str]:
    """Runs the missing steps in one transaction; returns their names.

    Raises:
        BankSchemaError: If there is no bank, or one of a newer version.
    """
    database = Database(parse_location(url))
    location = database.location
    if location.kind == "memory" or (
        location.path is not None and file_is_new(location.path, read_only=True)
    ):
        raise BankSchemaError(f"{location.shown} holds no bank to migrate.")
    try:
        with database.write() as connection:
            _lock_schema(connection)
            done = _done(connection, location.shown)
            if done is None:
                raise BankSchemaError(f"{location.shown} holds no bank to migrate.")
            _refuse_newer(done, location.shown)
            missing = [(name, step) for name, step in MIGRATIONS if name not in done]
            for _, step in missing:
                step(connection)
            names = json.dumps([name for name, _ in MIGRATIONS])
            connection.execute(META.update().where(META.c.name == "migrations").values(value=names))
    finally:
        database.close()
    return [name for name, _ in missing]


def _lock_schema(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})


def _create_or_look(connection: Connection, database: Database) -> list[str]:
    """Creates everything in one transaction, unless another process has just done so."""
    _lock_schema(connection)
    done = _done(connection, database.location.shown)
    if done is not None:
        return done
    if database.is_sqlite:
        connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
    elif connection.execute(text("SHOW server_encoding")).scalar_one() != "UTF8":
        raise BankSchemaError(
            f"Database {database.location.shown} is not encoded in UTF8: create one that is."
        )
    METADATA.create_all(connection)
    names = [name for name, _ in MIGRATIONS]
    bank_id = secrets.token_hex(16)
    rows = {"bank_id": bank_id, "migrations": json.dumps(names)}
    # Runs of a bank that can be copied and exported need ids that no other bank gives; those of one in
    # memory are the same each time, so that equal runs give equal bytes.
    rows["run_prefix"] = "run" if database.location.kind == "memory" else bank_id[:8]
    connection.execute(META.insert(), [{"name": name, "value": value} for name, value in rows.items()])
    connection.execute(COUNTER.insert(), [{"name": "run", "value": 0}])
    return names


def _done(connection: Connection, shown: str) -> list[str] | None:
    """Returns the names of the steps done, None where there are no tables of a bank."""
    inspector = inspect(connection)
    found = set(inspector.get_table_names()) & set(METADATA.tables)
    if not found:
        return None
    columns = {column["name"] for column in inspector.get_columns("meta")} if "meta" in found else set()
    value = None
    if columns == {"name", "value"}:
        value = connection.execute(select(META.c.value).where(META.c.name == "migrations")).scalar()
    if value is None:
        raise BankSchemaError(
            f"{shown} holds tables of another application ({', '.join(sorted(found))}). Nothing was changed; "
            "give the bank a database or a schema of its own."
        )
    names: list[str] = json.loads(value)
    return names


def _refuse_newer(done: list[str], shown: str) -> None:
    unknown = [name for name in done if name not in {known for known, _ in MIGRATIONS}]
    if unknown:
        raise BankSchemaError(
            f"Bank {shown} has schema {unknown[-1]!r}, which this version of ceb_gym does not know. "
            "Update ceb_gym: `pip install -U ceb-gym`."
        )


def _check(done: list[str], shown: str) -> None:
    _refuse_newer(done, shown)
    missing = [name for name, _ in MIGRATIONS if name not in done]
    if missing:
        raise BankSchemaError(
            f"Bank {shown} has schema {done[-1]!r}, this version reads {missing[-1]!r}. Run "
            "`ceb bank migrate` on a copy first, then on the bank."
        )
