"""A PostgreSQL server, a small disk, and banks for the tests."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest
from ci_rule import cannot_run
from sqlalchemy import create_engine, text

from ceb_gym.bank import SqlBank
from ceb_gym.testing import ManualClock


def _postgres_folder() -> Path:
    on_path = shutil.which("initdb")
    found = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        cannot_run("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    return found[-1]


def _as_postgres(*command: str | Path) -> None:
    """Runs a command of PostgreSQL, which refuses to run as root."""
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*prefix, *map(str, command)], cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        pytest.fail(f"{command[0]} failed: {done.stdout[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server on loopback that ends with the tests."""
    if find_spec("psycopg") is None:
        cannot_run("the PostgreSQL driver is not installed (pip install psycopg)")
    programs = _postgres_folder()
    folder = Path(tempfile.mkdtemp(prefix="ceb-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        data, port = folder / "data", _free_port()
        _as_postgres(
            programs / "initdb",
            "-D",
            data,
            "-U",
            "ceb",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C",
        )
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        log = folder / "log"
        _as_postgres(programs / "pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "start")
        try:
            yield f"postgresql+psycopg://ceb@127.0.0.1:{port}/postgres"
        finally:
            _as_postgres(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_schema_numbers = count(1)


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """The URL of an empty schema of its own."""
    schema = f"bank_{next(_schema_numbers)}"
    engine = create_engine(postgres_server)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    engine.dispose()
    return f"{postgres_server}?options=-csearch_path%3D{schema}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty bank that processes can share, on each database."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'bank.db'}"


@pytest.fixture
def open_bank() -> Iterator[Callable[..., SqlBank]]:
    """Opens banks that are closed after the test."""
    opened: list[SqlBank] = []

    def open_one(*args: object, **settings: object) -> SqlBank:
        opened.append(SqlBank(*args, **settings))  # type: ignore[arg-type]  # passed through
        return opened[-1]

    yield open_one
    for bank in opened:
        bank.close()


@pytest.fixture(params=["sqlite", "memory", "postgresql"])
def bank(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, open_bank: Callable[..., SqlBank]
) -> SqlBank:
    """An empty bank on each database."""
    if request.param == "postgresql":
        return open_bank(request.getfixturevalue("postgres_url"), clock=clock)
    return open_bank(
        "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'bank.db'}", clock=clock
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        cannot_run("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        cannot_run(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
