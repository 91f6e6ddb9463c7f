"""Many processes and threads on one bank."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import bank_forks
import pytest

from ceb_gym.bank import SqlBank
from ceb_gym.errors import BankError
from ceb_gym.testing import bank_episode, make_trajectory

EPISODES = 15


def write_episodes(url: str, writer: int) -> None:
    bank = SqlBank(url)
    for number in range(EPISODES):
        bank_episode(bank, make_trajectory(f"{writer}-{number}", 3))
    bank.close()


def follow(bank: SqlBank, until: int) -> list[str]:
    """Returns the ids in the order in which a reader that follows the revisions meets them."""
    seen: list[str] = []
    last = 0
    while last < until:
        newest = bank.revision("scope")
        seen.extend(record.record_id for record in bank.changes("scope", last, newest).added)
        last = newest
    return seen


def test_reader_meets_every_record_of_four_writers_once_and_in_commit_order(
    shared_url: str, open_bank: Callable[..., SqlBank]
) -> None:
    open_bank(shared_url).close()
    writers = [
        bank_forks.start(lambda writer=writer: write_episodes(shared_url, writer)) for writer in range(4)
    ]
    bank = open_bank(shared_url)
    seen = follow(bank, 4 * EPISODES)
    assert [bank_forks.wait(writer) for writer in writers] == [0, 0, 0, 0]
    assert len(set(seen)) == len(seen) == 4 * EPISODES * 3
    assert seen == [record.record_id for record in bank.records("scope")]
    assert [record.record_id for _, record in bank.iter_records("scope", page=7)] == seen


def test_four_processes_can_create_the_same_bank(shared_url: str, open_bank: Callable[..., SqlBank]) -> None:
    children = [
        bank_forks.start(
            lambda number=number: bank_episode(SqlBank(shared_url), make_trajectory(f"e{number}"))
        )
        for number in range(4)
    ]
    assert [bank_forks.wait(child) for child in children] == [0, 0, 0, 0]
    assert open_bank(shared_url).revision("scope") == 4


def test_run_ids_of_processes_never_repeat(shared_url: str, open_bank: Callable[..., SqlBank]) -> None:
    bank = open_bank(shared_url)
    reading, writing = os.pipe()
    children = [
        bank_forks.start(lambda: os.write(writing, "".join(f"{bank.new_run()}\n" for _ in range(5)).encode()))
        for _ in range(3)
    ]
    assert [bank_forks.wait(child) for child in children] == [0, 0, 0]
    os.close(writing)
    with os.fdopen(reading) as pipe:
        runs = pipe.read().split()
    assert len(set(runs)) == 15
    assert bank.new_run() not in runs


def test_forked_child_and_parent_both_go_on_writing(
    shared_url: str, open_bank: Callable[..., SqlBank]
) -> None:
    bank = open_bank(shared_url)
    bank_episode(bank, make_trajectory("before"))
    child = bank_forks.start(lambda: bank_episode(bank, make_trajectory("child")))
    bank_episode(bank, make_trajectory("parent"))
    assert bank_forks.wait(child) == 0
    bank_episode(bank, make_trajectory("after"))
    assert {record.episode_id for record in bank.records("scope")} == {"before", "child", "parent", "after"}


def test_forked_child_inherits_no_open_file_of_the_bank(
    tmp_path: Path, open_bank: Callable[..., SqlBank]
) -> None:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("open files are listed in /proc only on Linux")
    bank = open_bank(f"sqlite:///{tmp_path / 'bank.db'}")
    bank_episode(bank, make_trajectory())

    def count_open() -> int:
        links = [os.readlink(link) for link in folder.iterdir() if os.path.islink(link)]
        return sum(link.startswith(str(tmp_path / "bank.db")) for link in links)

    def child() -> None:
        assert count_open() == 0

    assert count_open() > 0
    assert bank_forks.run(child) == 0


def test_fork_waits_for_a_write_of_another_thread(tmp_path: Path, open_bank: Callable[..., SqlBank]) -> None:
    bank = open_bank(f"sqlite:///{tmp_path / 'bank.db'}")
    stop = threading.Event()

    def keep_writing() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            bank_episode(bank, make_trajectory(f"thread-{number}"))

    thread = threading.Thread(target=keep_writing)
    thread.start()
    try:
        codes = [
            bank_forks.run(lambda number=number: bank_episode(bank, make_trajectory(f"child-{number}")))
            for number in range(5)
        ]
    finally:
        stop.set()
        thread.join()
    assert codes == [0] * 5
    ids = [record.record_id for record in bank.records("scope")]
    assert len(ids) == len(set(ids))
    assert sum(record_id.startswith("child-") for record_id in ids) == 15


def test_memory_bank_in_a_forked_child_is_an_error(open_bank: Callable[..., SqlBank]) -> None:
    bank = open_bank("memory:")

    def child() -> None:
        with pytest.raises(BankError, match="after a fork"):
            bank.revision("scope")
        bank.close()

    assert bank_forks.run(child) == 0
    assert bank.revision("scope") == 0


def test_threads_share_a_bank(bank: SqlBank) -> None:
    failures: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for number in range(20):
                bank_episode(bank, make_trajectory(f"{name}-{number}", 2))
                bank.revision("scope")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert bank.revision("scope") == 40
    assert len({record.record_id for record in bank.records("scope")}) == 80
