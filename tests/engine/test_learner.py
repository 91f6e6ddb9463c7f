from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ceb_gym.bank import SqlBank
from ceb_gym.engine.learning import Learner, label_stored
from ceb_gym.errors import BankError, LabelerError
from ceb_gym.hindsight.rules import CallableLabeler, RewardLevelLabeler, SuccessLabeler
from ceb_gym.testing import make_step, make_trajectory
from ceb_gym.types import StepLabel, Trajectory, TrajectoryKey

ALL_TRUE = CallableLabeler(lambda trajectory: [True] * len(trajectory.steps), "all_true")


@pytest.fixture
def bank() -> Iterator[SqlBank]:
    bank = SqlBank("memory:")
    yield bank
    bank.close()


class FullDisk:
    """A bank that takes so many more trajectories, and labels only while it is not full."""

    def __init__(self, bank: SqlBank) -> None:
        self._bank = bank
        self.room = 0
        self.takes_labels = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bank, name)

    def add_trajectory(self, trajectory: Trajectory, *, status: Any = "pending") -> None:
        if self.room == 0:
            raise BankError("The disk is full.")
        self.room -= 1
        self._bank.add_trajectory(trajectory, status=status)

    def commit_labels(self, *arguments: Any) -> int | None:
        if not self.takes_labels:
            raise BankError("The disk is full.")
        return self._bank.commit_labels(*arguments)


def raising(error: BaseException) -> CallableLabeler:
    def label(trajectory: Trajectory) -> list[bool]:
        raise error

    return CallableLabeler(label, "raising")


def saying(labels: Sequence[Any]) -> CallableLabeler:
    return CallableLabeler(lambda trajectory: labels, "saying")


def segments(episode: str, count: int, **changes: Any) -> list[Trajectory]:
    """An episode in segments of two steps."""
    return [
        make_trajectory(
            episode,
            [make_step(2 * number), make_step(2 * number + 1)],
            segment=number,
            ending="terminated" if number == count - 1 else "segmented",
            success=True if number == count - 1 else None,
            **changes,
        )
        for number in range(count)
    ]


def test_labelling_a_stored_trajectory_makes_its_records_the_next_revision(bank: SqlBank) -> None:
    bank.add_trajectory(make_trajectory("a", 3))
    assert label_stored(bank, ALL_TRUE, TrajectoryKey("a", 0)) == 1
    assert [record.labeler for record in bank.records("scope")] == ["all_true"] * 3
    assert bank.pending() == []


@pytest.mark.parametrize(
    ("labeler", "said"),
    [
        (raising(ZeroDivisionError("oops")), "raising raised ZeroDivisionError: oops"),
        (saying([True]), "1 labels for 3"),
        (saying([StepLabel(9, True)]), "labelled step 9"),
        (saying([StepLabel(1, True), StepLabel(1, False)]), "labelled already"),
        (saying([StepLabel(1, "yes")]), "the label 'yes'"),  # type: ignore[arg-type]  # on purpose
        (saying(None), "returned None"),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_a_labeler_that_fails_gives_its_claim_back(bank: SqlBank, labeler: Any, said: str) -> None:
    key = TrajectoryKey("a", 0)
    bank.add_trajectory(make_trajectory("a", 3))
    with pytest.raises(LabelerError, match=said):
        label_stored(bank, labeler, key)
    assert bank.pending() == [key] and bank.records("scope") == []
    assert label_stored(bank, ALL_TRUE, key) == 1


def test_an_interrupt_while_labelling_passes_through_and_gives_the_claim_back(bank: SqlBank) -> None:
    bank.add_trajectory(make_trajectory("a", 3))
    with pytest.raises(KeyboardInterrupt):
        label_stored(bank, raising(KeyboardInterrupt()), TrajectoryKey("a", 0))
    assert label_stored(bank, ALL_TRUE, TrajectoryKey("a", 0)) == 1


def test_labels_that_cannot_be_stored_give_the_claim_back(bank: SqlBank) -> None:
    bank.add_trajectory(make_trajectory("a", 3))
    disk: Any = FullDisk(bank)
    with pytest.raises(BankError, match="disk is full"):
        label_stored(disk, ALL_TRUE, TrajectoryKey("a", 0))
    with pytest.raises(BankError, match="vote share"):
        label_stored(bank, saying([StepLabel(0, True, float("nan"))]), TrajectoryKey("a", 0))
    assert label_stored(bank, ALL_TRUE, TrajectoryKey("a", 0)) == 1


def test_a_step_without_outcome_is_not_banked_whatever_its_labeler_says(bank: SqlBank) -> None:
    broken_off = make_step(1, outcome=None, reward=None)
    bank.add_trajectory(make_trajectory("a", [make_step(0), broken_off], ending="abandoned"))
    label_stored(bank, saying([StepLabel(0, True), StepLabel(1, True)]), TrajectoryKey("a", 0))
    assert [record.step_index for record in bank.records("scope")] == [0]


def test_a_step_that_was_not_executed_cannot_be_labelled(bank: SqlBank) -> None:
    deferred = make_step(1, executed=False, outcome=None, reward=None, decision="defer")
    bank.add_trajectory(make_trajectory("a", [make_step(0), deferred]))
    with pytest.raises(LabelerError, match="labelled step 1"):
        label_stored(bank, saying([StepLabel(1, True)]), TrajectoryKey("a", 0))


def test_a_failed_labeler_warns_that_the_episode_waits(bank: SqlBank) -> None:
    learner = Learner(bank, raising(ValueError("no idea")), "inline")
    with pytest.warns(RuntimeWarning, match=r"Episode a is stored but not labelled.*no idea.*ceb bank label"):
        learner.submit(make_trajectory("a"), "pending")
    assert bank.pending() == [TrajectoryKey("a", 0)]


def test_inline_learning_is_done_when_submit_returns(bank: SqlBank) -> None:
    Learner(bank, ALL_TRUE, "inline").submit(make_trajectory("a", 3), "pending")
    assert bank.revision("scope") == 1


@pytest.mark.parametrize("finish", ["flush", "close"])
def test_background_learning_is_done_when_it_is_flushed_or_closed(bank: SqlBank, finish: str) -> None:
    learner = Learner(bank, ALL_TRUE, "background")
    for number in range(20):
        learner.submit(make_trajectory(f"episode {number}", 2), "pending")
    getattr(learner, finish)()
    assert bank.revision("scope") == 20 and bank.pending() == []
    learner.close()


def test_learning_off_stores_nothing(bank: SqlBank) -> None:
    learner = Learner(bank, ALL_TRUE, "off")
    learner.submit(make_trajectory("a"), "pending")
    learner.close()
    assert bank.pending(held=True) == [] and bank.revision("scope") == 0


def test_without_a_labeler_episodes_stay_pending(bank: SqlBank) -> None:
    Learner(bank, None, "inline").submit(make_trajectory("a"), "pending")
    assert bank.pending() == [TrajectoryKey("a", 0)]


def test_held_episodes_are_kept_and_not_labelled(bank: SqlBank) -> None:
    Learner(bank, ALL_TRUE, "inline").submit(make_trajectory("a", ending="abandoned"), "held")
    assert bank.pending(held=True) == [TrajectoryKey("a", 0)] and bank.revision("scope") == 0


@pytest.mark.filterwarnings("error")
def test_a_warning_made_an_error_in_the_background_reaches_flush_and_stops_nothing_else(
    bank: SqlBank,
) -> None:
    def label(trajectory: Trajectory) -> list[bool]:
        if trajectory.episode_id == "bad":
            raise ValueError("no idea")
        return [True] * len(trajectory.steps)

    learner = Learner(bank, CallableLabeler(label), "background")
    for episode in ("bad", "good"):
        learner.submit(make_trajectory(episode), "pending")
    with pytest.raises(RuntimeWarning, match="Episode bad"):
        learner.flush()
    learner.close()
    assert bank.pending() == [TrajectoryKey("bad", 0)]


def test_an_exit_in_a_background_labeler_reaches_close(bank: SqlBank) -> None:
    learner = Learner(bank, raising(SystemExit(3)), "background")
    learner.submit(make_trajectory("a"), "pending")
    with pytest.raises(SystemExit):
        learner.close()
    assert bank.pending() == [TrajectoryKey("a", 0)]


def test_many_threads_label_each_trajectory_once(bank: SqlBank) -> None:
    calls: Counter[str] = Counter()

    def label(trajectory: Trajectory) -> list[bool]:
        calls[trajectory.episode_id] += 1
        return [True] * len(trajectory.steps)

    keys = [TrajectoryKey(f"episode {number}", 0) for number in range(12)]
    for key in keys:
        bank.add_trajectory(make_trajectory(key.episode_id, 2))
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for key in keys:
            label_stored(bank, CallableLabeler(label), key)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(calls.values()) == {1} and len(calls) == 12
    assert len(bank.records("scope")) == 24


def test_an_episode_that_cannot_be_stored_waits_in_memory_and_is_stored_with_the_next(bank: SqlBank) -> None:
    disk: Any = FullDisk(bank)
    learner = Learner(disk, ALL_TRUE, "inline")
    with pytest.warns(RuntimeWarning, match=r"1 episode\(s\) wait in memory.*disk is full"):
        learner.submit(make_trajectory("a"), "pending")
    disk.room, disk.takes_labels = 9, True
    learner.submit(make_trajectory("b"), "pending")
    assert [record.episode_id for record in bank.records("scope")] == ["a"] * 3 + ["b"] * 3


def test_an_episode_stored_before_the_disk_filled_up_is_still_labelled(bank: SqlBank) -> None:
    disk: Any = FullDisk(bank)
    learner = Learner(disk, ALL_TRUE, "inline")
    with pytest.warns(RuntimeWarning, match="wait in memory"):
        learner.submit(make_trajectory("a"), "pending")
    disk.room, disk.takes_labels = 1, True
    with pytest.warns(RuntimeWarning, match=r"1 episode\(s\) wait in memory"):
        learner.submit(make_trajectory("b"), "pending")
    assert bank.revision("scope") == 1
    disk.room = 9
    learner.close()
    assert [record.episode_id for record in bank.records("scope")] == ["a"] * 3 + ["b"] * 3


def test_flush_says_when_an_episode_still_cannot_be_stored(bank: SqlBank) -> None:
    disk: Any = FullDisk(bank)
    learner = Learner(disk, ALL_TRUE, "background")
    with pytest.warns(RuntimeWarning):
        learner.submit(make_trajectory("a"), "pending")
    with pytest.raises(BankError, match="disk is full"):
        learner.close()


def test_the_same_episode_submitted_twice_is_banked_once(bank: SqlBank) -> None:
    learner = Learner(bank, ALL_TRUE, "inline")
    for _ in range(2):
        learner.submit(make_trajectory("a", 3), "pending")
    assert len(bank.records("scope")) == 3


def test_a_run_id_used_again_and_again_loses_no_episode_and_warns_once_for_each(bank: SqlBank) -> None:
    for run in range(1, 6):
        learner = Learner(bank, ALL_TRUE, "inline")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            learner.submit(make_trajectory("my~run-0", 1, task=f"task {run}"), "pending")
        assert len(caught) == (run > 1)
        stored_as = "my~run-0" + (f"~{run}" if run > 1 else "")
        assert bank.episode(stored_as).task == f"task {run}"
    assert len(bank.records("scope")) == 5


@pytest.mark.parametrize("labeler", [ALL_TRUE, RewardLevelLabeler()], ids=lambda labeler: labeler.name)
def test_all_segments_of_a_renamed_episode_stay_together(bank: SqlBank, labeler: Any) -> None:
    Learner(bank, ALL_TRUE, "inline").submit(make_trajectory("a", 1), "pending")
    learner = Learner(bank, labeler, "inline")
    with pytest.warns(RuntimeWarning, match="stored as a~2"):
        for part in segments("a", 3):
            status = "open" if learner.needs_ending and part.ending == "segmented" else "pending"
            learner.submit(part, status)  # type: ignore[arg-type]  # one of the two
    assert len(bank.episode("a").steps) == 1
    assert len(bank.episode("a~2").steps) == 6
    assert len([record for record in bank.records("scope") if record.episode_id == "a~2"]) == 6


def test_a_later_episode_of_the_same_name_is_not_mixed_with_the_renamed_one(bank: SqlBank) -> None:
    learner = Learner(bank, ALL_TRUE, "inline")
    for task in ("one", "two", "three"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part in segments("a", 2, task=task):
                learner.submit(part, "open" if part.ending == "segmented" else "pending")
    assert [bank.episode(name).task for name in ("a", "a~2", "a~3")] == ["one", "two", "three"]
    assert len(bank.records("scope")) == 12


def test_a_labeler_that_needs_the_ending_labels_early_segments_by_it(bank: SqlBank) -> None:
    learner = Learner(bank, SuccessLabeler(), "inline")
    for part in segments("a", 3):
        learner.submit(part, "open" if part.ending == "segmented" else "pending")
    assert [record.label for record in bank.records("scope")] == [True] * 6


def test_a_labeler_that_needs_no_ending_labels_each_segment_at_once(bank: SqlBank) -> None:
    learner = Learner(bank, RewardLevelLabeler(), "inline")
    first, second = segments("a", 2)
    learner.submit(first, "pending")
    assert len(bank.records("scope")) == 2
    learner.submit(second, "pending")
    assert [record.step_index for record in bank.records("scope")] == [0, 1, 2, 3]


def test_rewards_of_later_episodes_do_not_reach_a_labeler(bank: SqlBank) -> None:
    seen: list[Sequence[Sequence[float]]] = []

    class Notes(SuccessLabeler):
        past_episodes = 10

        def label(self, trajectory: Trajectory, past_rewards: Sequence[Sequence[float]] = ()) -> Any:
            seen.append(past_rewards)
            return super().label(trajectory, past_rewards)

    for number in range(3):
        step = replace(make_step(0), reward=float(number))
        bank.add_trajectory(make_trajectory(f"episode {number}", [step]))
    label_stored(bank, Notes(), TrajectoryKey("episode 1", 0))
    assert seen == [[(0.0,)]]
