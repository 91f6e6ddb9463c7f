"""Paths, files and disks that are not as they should be."""

import errno
import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ci_rule import cannot_run
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, inspect, text

from ceb_gym.bank import SqlBank, migrations
from ceb_gym.bank.location import bank_url, parse_location
from ceb_gym.errors import BankError, BankSchemaError, ConfigurationError
from ceb_gym.testing import bank_episode, make_labels, make_step, make_trajectory
from ceb_gym.types import TrajectoryKey

Opener = Callable[..., SqlBank]


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def fingerprint(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.iterdir()}


def integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


# URLs


def test_relative_file_is_found_after_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_bank: Opener
) -> None:
    monkeypatch.chdir(tmp_path)
    bank = open_bank("sqlite:///bank.db")
    assert bank.url == f"sqlite:///{tmp_path}/bank.db"
    bank.close()
    monkeypatch.chdir("/")
    assert bank_episode(bank, make_trajectory()) == 1
    assert (tmp_path / "bank.db").exists()


@pytest.mark.parametrize("name", ["a b.db", "per%20cent.db", "fra#gment.db", "naïve-\U0001f600.db", "-dash"])
def test_file_names_are_taken_as_they_are(tmp_path: Path, open_bank: Opener, name: str) -> None:
    open_bank(url_of(tmp_path / name)).close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bank.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "mysql://u:secret@h/db",
        "sqlite:///a?b=c",
    ],
)
def test_url_of_another_form_is_refused_without_showing_passwords(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Bank|bank") as caught:
        SqlBank(url)
    assert "secret" not in str(caught.value)


def test_passwords_are_never_shown() -> None:
    shown = parse_location("postgresql://me:secret@host:5/db?password=hidden&sslmode=require").shown
    assert shown == "postgresql+psycopg://me:***@host:5/db?sslmode=require"


def test_person_may_write_a_path_for_a_url() -> None:
    assert bank_url("runs/bank.db") == "sqlite:///runs/bank.db"
    assert bank_url("/abs/bank.db") == "sqlite:////abs/bank.db"
    assert bank_url("memory:") == "memory:"
    assert bank_url("postgresql://host/db") == "postgresql://host/db"


def test_server_that_does_not_answer_is_an_error_that_names_the_bank() -> None:
    with pytest.raises(BankError, match=r"postgresql\+psycopg://ceb@127.0.0.1:1/none"):
        SqlBank("postgresql+psycopg://ceb@127.0.0.1:1/none")


def test_missing_driver_is_named_with_its_extra() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from ceb_gym.bank.store import SqlBank\n"
        "SqlBank('postgresql+psycopg://h/d')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ConfigurationError" in done.stderr
    assert "pip install 'ceb-gym[postgres]'" in done.stderr


# Files


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="is a folder"):
        SqlBank(url_of(tmp_path))


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BankError, match=r"missing does not exist"):
        SqlBank(url_of(tmp_path / "missing" / "bank.db"))


def test_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BankError, match="no regular file"):
        SqlBank(url_of(tmp_path / "pipe"))


def test_empty_file_becomes_a_bank(tmp_path: Path, open_bank: Opener) -> None:
    (tmp_path / "bank.db").touch()
    assert bank_episode(open_bank(url_of(tmp_path / "bank.db")), make_trajectory()) == 1


@pytest.mark.parametrize("content", [b"hello, this is text", b"\x00" * 4096, b"SQLite format 3\x00short"])
def test_file_that_is_no_bank_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bank.db"
    path.write_bytes(content)
    before = fingerprint(path)
    with pytest.raises(BankSchemaError, match=r"bank\.db is (not )?an SQLite file"):
        SqlBank(url_of(path))
    assert fingerprint(path) == before


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@pytest.mark.parametrize("read_only", [False, True])
def test_file_of_another_application_is_left_as_it_is(tmp_path: Path, mode: str, read_only: bool) -> None:
    path = tmp_path / "bank.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={mode}")
    connection.execute("CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT)")
    connection.close()
    before = fingerprint(path)
    with pytest.raises(BankSchemaError, match="another application"):
        SqlBank(url_of(path), read_only=read_only)
    assert fingerprint(path) == before


def test_tables_of_another_application_on_postgresql_are_left_as_they_are(postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE meta(name text, other text)"))
    with pytest.raises(BankSchemaError, match="another application"):
        SqlBank(postgres_url)
    assert inspect(engine).get_table_names() == ["meta"]
    engine.dispose()


def test_damaged_bank_is_an_error_that_says_so(tmp_path: Path, open_bank: Opener) -> None:
    path = tmp_path / "bank.db"
    bank = open_bank(url_of(path))
    for number in range(20):
        bank_episode(bank, make_trajectory(f"e{number}", [make_step(0, state="x" * 3000)]))
    bank.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(BankError, match="damaged") as caught:
        open_bank(url_of(path)).records("scope")
    assert caught.value.__cause__ is not None


def test_bank_locked_by_another_process_is_an_error_after_the_time_out(
    tmp_path: Path, open_bank: Opener
) -> None:
    path = tmp_path / "bank.db"
    bank = open_bank(url_of(path))
    bank.close()
    bank._database._busy_timeout_s = 0.05
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BankError, match="locked"):
        bank.add_trajectory(make_trajectory())
    assert bank.revision("scope") == 0
    other.execute("ROLLBACK")
    other.close()
    bank.add_trajectory(make_trajectory())


# Read-only


def test_read_only_bank_reads_and_refuses_to_write(shared_url: str, open_bank: Opener) -> None:
    bank_episode(open_bank(shared_url), make_trajectory())
    bank = open_bank(shared_url, read_only=True)
    assert len(bank.records("scope")) == 3
    assert bank.new_run() != bank.new_run()
    for write in (
        lambda: bank.add_trajectory(make_trajectory("other")),
        lambda: bank.claim(TrajectoryKey("episode", 0)),
        lambda: bank.put_setting("scope", "name", "value"),
        lambda: bank.evict("scope", ["episode:0:1"]),
    ):
        with pytest.raises(BankError, match="read_only=True; nothing was written"):
            write()


def test_read_only_access_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="does not exist"):
        SqlBank(url_of(tmp_path / "bank.db"), read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_read_only_reader_follows_a_writer(shared_url: str, open_bank: Opener) -> None:
    writer = open_bank(shared_url)
    bank_episode(writer, make_trajectory("a"))
    reader = open_bank(shared_url, read_only=True)
    bank_episode(writer, make_trajectory("b"))
    assert reader.revision("scope") == 2


def test_bank_on_a_read_only_disk_can_be_read(small_disk: Path, open_bank: Opener) -> None:
    url = url_of(small_disk / "bank.db")
    bank = open_bank(url)
    bank_episode(bank, make_trajectory())
    bank.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert len(open_bank(url, read_only=True).records("scope")) == 3
    with pytest.raises(BankError, match=r"read-only|cannot be opened"):
        open_bank(url).add_trajectory(make_trajectory("other"))


# Full disks


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\x00" * 1024)
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return filler


def test_full_disk_leaves_the_bank_whole_and_the_trajectory_waiting(
    small_disk: Path, open_bank: Opener
) -> None:
    path = small_disk / "bank.db"
    bank = open_bank(url_of(path))
    bank_episode(bank, make_trajectory("before"))
    long = make_trajectory("long", [make_step(0, state="x" * 100_000)])
    bank.add_trajectory(long)
    claim = bank.claim(TrajectoryKey("long", 0))
    assert claim is not None
    filler = fill(small_disk)
    with pytest.raises(BankError, match="disk is full"):
        bank.commit_labels(claim, make_labels(long), "test")
    with pytest.raises(BankError, match="disk is full"):
        bank.add_trajectory(make_trajectory("more", [make_step(0, state="x" * 100_000)]))
    assert bank.pending() == [("long", 0)]
    assert bank.revision("scope") == 1
    filler.unlink()
    assert bank.commit_labels(claim, make_labels(long), "test") == 2
    assert len(bank.records("scope")) == 4
    bank.close()
    assert integrity(path) == "ok"


def test_full_disk_while_a_bank_is_created_leaves_none(small_disk: Path, open_bank: Opener) -> None:
    filler = fill(small_disk)
    url = url_of(small_disk / "bank.db")
    with pytest.raises(BankError, match=r"disk is full|cannot be opened"):
        open_bank(url)
    filler.unlink()
    assert bank_episode(open_bank(url), make_trajectory()) == 1


# Schema versions


def add_table(connection: object) -> None:
    Table("extra", MetaData(), Column("number", Integer)).create(connection)  # type: ignore[arg-type]


def test_older_bank_asks_to_be_migrated_and_then_works(
    shared_url: str, open_bank: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank_episode(open_bank(shared_url), make_trajectory())
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, ("0002_extra", add_table)))
    with pytest.raises(BankSchemaError, match="Run `ceb bank migrate`"):
        open_bank(shared_url)
    assert migrations.migrate(shared_url) == ["0002_extra"]
    assert migrations.migrate(shared_url) == []
    assert len(open_bank(shared_url).records("scope")) == 3


def test_newer_bank_is_refused(shared_url: str, open_bank: Opener) -> None:
    with pytest.MonkeyPatch.context() as newer:
        newer.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, ("0002_extra", add_table)))
        open_bank(shared_url)
    with pytest.raises(BankSchemaError, match="'0002_extra', which this version"):
        open_bank(shared_url)
    with pytest.raises(BankSchemaError, match="pip install -U"):
        migrations.migrate(shared_url)


def test_step_that_fails_changes_nothing(
    shared_url: str, open_bank: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(connection: object) -> None:
        add_table(connection)
        raise RuntimeError("half-way")

    bank_episode(open_bank(shared_url), make_trajectory())
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, ("0002_extra", break_down)))
    with pytest.raises(RuntimeError, match="half-way"):
        migrations.migrate(shared_url)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS[:-1], ("0002_extra", add_table)))
    assert migrations.migrate(shared_url) == ["0002_extra"]


def test_there_is_nothing_to_migrate_where_there_is_no_bank(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="does not exist"):
        migrations.migrate(url_of(tmp_path / "bank.db"))
    with pytest.raises(BankSchemaError, match="no bank"):
        migrations.migrate("memory:")


def test_ci_must_run_what_a_laptop_may_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no tool"):
        cannot_run("no tool")
    monkeypatch.setenv("CI", "false")
    with pytest.raises(pytest.skip.Exception, match="no tool"):
        cannot_run("no tool")
