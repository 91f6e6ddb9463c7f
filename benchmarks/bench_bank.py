"""Appended 8-step episodes a second, with 1 and 4 writer processes, beside plain sqlite3.

An episode is stored, claimed and labelled (three transactions, two of them synced to the disk). The peer
writes the same rows into the same tables in one synced transaction per episode, without checking anything.

Run: python benchmarks/bench_bank.py [--quick] [--postgres postgresql+psycopg://user@host/name]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ceb_gym.bank import SqlBank
from ceb_gym.testing import make_step, make_trajectory
from ceb_gym.types import StepLabel, TrajectoryKey, Vote

STEPS = 8
STATE = "a state of about two hundred characters, as a summary of a shell has it. " * 3
LABELS = [
    StepLabel(i, i % 2 == 0, 0.8, tuple(Vote(v != 2, v, "m", "productive") for v in range(5)))
    for i in range(STEPS)
]
TABLES = ("trajectory", "step", "labeling", "vote", "revision", "record")
FORK = multiprocessing.get_context("fork")


def episode(name: str) -> Any:
    return make_trajectory(name, [make_step(i, state=STATE, outcome=STATE) for i in range(STEPS)])


def append(bank: SqlBank, name: str) -> None:
    bank.add_trajectory(episode(name))
    claim = bank.claim(TrajectoryKey(name, 0))
    assert claim is not None
    bank.commit_labels(claim, LABELS, "votes")


def write_with_bank(url: str, writer: int, episodes: int) -> None:
    bank = SqlBank(url)
    for number in range(episodes):
        append(bank, f"{writer}-{number}")
    bank.close()


def template(path: Path) -> dict[str, tuple[list[str], list[tuple[Any, ...]]]]:
    """The rows that one episode leaves in each table."""
    bank = SqlBank(f"sqlite:///{path}")
    append(bank, "template")
    bank.close()
    connection = sqlite3.connect(path)
    rows = {}
    for table in TABLES:
        cursor = connection.execute(f"SELECT * FROM {table}")
        rows[table] = ([column[0] for column in cursor.description], cursor.fetchall())
        connection.execute(f"DELETE FROM {table}")
    connection.commit()
    connection.close()
    return rows


def with_number(columns: list[str], row: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    """The row of another episode: its keys replaced."""
    changed = dict(zip(columns, row, strict=True))
    for name in ("trajectory_id", "labeling_id", "revision", "added_revision"):
        if name in changed:
            changed[name] = number
    if "episode_id" in changed:
        changed["episode_id"] = f"{number}"
    if "record_id" in changed:
        changed["record_id"] = f"{number}:{changed['step_index']}:1"
        changed["sequence"] = None
    return tuple(changed.values())


def write_plainly(path: Path, rows: dict[str, Any], writer: int, episodes: int) -> None:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    for count in range(episodes):
        number = 1 + writer * 1_000_000 + count
        connection.execute("BEGIN IMMEDIATE")
        for table, (columns, values) in rows.items():
            marks = ",".join("?" * len(columns))
            new = [with_number(columns, row, number) for row in values]
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", new)
        connection.execute("UPDATE scope SET revision = revision + 1 WHERE scope = 'scope'")
        connection.execute("COMMIT")
    connection.close()


def timed(write: Callable[[int], None], writers: int, episodes: int) -> float:
    """Episodes a second of all writers together."""
    processes = [FORK.Process(target=write, args=(writer,)) for writer in range(writers)]
    started = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    elapsed = time.perf_counter() - started
    assert all(process.exitcode == 0 for process in processes)
    return writers * episodes / elapsed


def sync_ms(folder: Path) -> float:
    """Median time of one sync after 8 KiB, in milliseconds: what a durable commit waits for at least."""
    spent = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(50):
            file.write(b"x" * 8192)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            spent.append(time.perf_counter() - started)
    return 1000 * statistics.median(spent)


def measure(
    folder: Path, writers: int, episodes: int, rounds: int, postgres: str | None
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"bank": [], "plain": [], "postgresql": []}
    for round_number in range(rounds):
        place = folder / f"{writers}-{round_number}"
        place.mkdir()
        url = f"sqlite:///{place / 'bank.db'}"
        SqlBank(url).close()
        found["bank"].append(timed(lambda w, url=url: write_with_bank(url, w, episodes), writers, episodes))
        path = place / "plain.db"
        rows = template(path)
        found["plain"].append(
            timed(lambda w, path=path, rows=rows: write_plainly(path, rows, w, episodes), writers, episodes)
        )
        if postgres:
            run = SqlBank(postgres).new_run()

            def write(writer: int, run: str = run) -> None:
                bank = SqlBank(str(postgres))
                for number in range(episodes):
                    append(bank, f"{run}-{writer}-{number}")
                bank.close()

            found["postgresql"].append(timed(write, writers, episodes))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer episodes and rounds")
    parser.add_argument("--postgres", metavar="URL", help="a database to measure too; rows are left in it")
    parser.add_argument("--folder", type=Path, help="where the files go: the disk that is measured")
    args = parser.parse_args()
    episodes, rounds = (150, 1) if args.quick else (500, 5)
    print("| writers | bank (episodes/s) | plain sqlite3 | ratio | PostgreSQL (episodes/s) |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        for writers in (1, 4):
            found = measure(Path(name), writers, episodes, rounds, args.postgres)
            bank, plain = statistics.median(found["bank"]), statistics.median(found["plain"])
            ratio = statistics.median(b / p for b, p in zip(found["bank"], found["plain"], strict=True))
            server = f"{statistics.median(found['postgresql']):,.0f}" if found["postgresql"] else "-"
            print(f"| {writers} | {bank:,.0f} | {plain:,.0f} | {ratio:.2f} | {server} |")
        print(
            f"\nMedians of {rounds} rounds of {episodes} episodes a writer; "
            f"one sync takes {sync_ms(Path(name)):.2f} ms."
        )


if __name__ == "__main__":
    main()
