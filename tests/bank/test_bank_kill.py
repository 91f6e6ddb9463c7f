"""kill -9 between every two writes of an episode's end, and what the next process finds."""

import os
import signal
from collections.abc import Callable

import bank_forks
import pytest
from sqlalchemy import Engine, event

from ceb_gym.bank import SqlBank
from ceb_gym.testing import ManualClock, make_labels, make_trajectory
from ceb_gym.types import StepLabel, TrajectoryKey, Vote

POINTS = 24
TRAJECTORY = make_trajectory(steps=8)
KEY = TrajectoryKey("episode", 0)


def labels() -> list[StepLabel]:
    return [StepLabel(label.index, label.label, 1.0, (Vote(True, 1),)) for label in make_labels(TRAJECTORY)]


def end_episode(bank: SqlBank) -> None:
    bank.add_trajectory(TRAJECTORY)
    claim = bank.claim(KEY)
    if claim is not None:
        bank.commit_labels(claim, labels(), "test")


def count_points(point: Callable[[], None]) -> Callable[[], None]:
    """Calls `point` before every statement and every commit of every engine; returns how to stop that."""

    def at_statement(*_: object) -> None:
        point()

    event.listen(Engine, "before_cursor_execute", at_statement)
    event.listen(Engine, "commit", at_statement)

    def stop() -> None:
        event.remove(Engine, "before_cursor_execute", at_statement)
        event.remove(Engine, "commit", at_statement)

    return stop


def kill_at(number: int) -> None:
    seen = 0

    def point() -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    count_points(point)


def test_the_numbered_points_reach_the_end_of_the_episode(
    shared_url: str, open_bank: Callable[..., SqlBank]
) -> None:
    bank = open_bank(shared_url)
    seen = 0

    def point() -> None:
        nonlocal seen
        seen += 1

    stop = count_points(point)
    try:
        end_episode(bank)
    finally:
        stop()
    assert 15 < seen <= POINTS


@pytest.mark.parametrize("number", range(1, POINTS + 1))
def test_killed_at_any_write_nothing_is_lost_or_doubled(
    shared_url: str, open_bank: Callable[..., SqlBank], number: int
) -> None:
    open_bank(shared_url).close()
    stored, told = os.pipe()

    def child() -> None:
        bank = SqlBank(shared_url)
        kill_at(number)
        bank.add_trajectory(TRAJECTORY)
        os.write(told, b"stored")
        end_episode(bank)

    assert bank_forks.run(child) in (bank_forks.KILLED, 0)
    os.close(told)
    was_stored = os.read(stored, 10) == b"stored"
    os.close(stored)

    clock = ManualClock(5e9)  # claims of the dead process have run out
    bank = open_bank(shared_url, clock=clock)
    if was_stored:
        assert bank.episode("episode") == TRAJECTORY
        assert bank.pending() == [KEY] or len(bank.records("scope")) == 8
    end_episode(bank)
    assert bank.pending() == []
    assert [record.record_id for record in bank.records("scope")] == [
        f"episode:{index}:1" for index in range(8)
    ]
    assert bank.revision("scope") == 1
    assert bank.stats("scope").trajectories == {"labelled": 1}


def test_killed_at_any_statement_of_its_creation_a_bank_can_still_be_created(
    shared_url: str, open_bank: Callable[..., SqlBank]
) -> None:
    def create_until(number: int) -> None:
        kill_at(number)
        SqlBank(shared_url)

    ends = [bank_forks.run(lambda number=number: create_until(number)) for number in range(1, 40, 3)]
    assert ends[0] == bank_forks.KILLED
    assert end_episode(open_bank(shared_url)) is None
    assert open_bank(shared_url).revision("scope") == 1
