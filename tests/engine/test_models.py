from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ceb_gym.bank import SqlBank
from ceb_gym.critics.simple import BaseRateCritic, CountsCritic
from ceb_gym.engine.learning import label_stored
from ceb_gym.engine.models import ModelStore, spaced_revision
from ceb_gym.hindsight.rules import CallableLabeler
from ceb_gym.protocols import LearningCritic
from ceb_gym.testing import make_trajectory
from ceb_gym.types import Pin, Precedents, Query, Record, TrajectoryKey, Verdict

QUERIES = [Query("env", "s", 0, "e", "task", "state", "act", (), False, index) for index in range(3)]


@pytest.fixture(scope="module")
def bank() -> Iterator[SqlBank]:
    """Two scopes of 150 one-revision episodes with random labels; `own` lost one at revision 100."""
    bank = SqlBank("memory:")
    rng = random.Random(5)
    for number in range(150):
        for scope in ("own", "other"):
            episode = f"{scope} {number}"
            bank.add_trajectory(make_trajectory(episode, 3, scope=scope))
            labels = [rng.random() < 0.3 for _ in range(3)]
            label_stored(bank, CallableLabeler(lambda _, labels=labels: labels), TrajectoryKey(episode, 0))
        if number == 98:
            assert bank.evict("own", ["own 7:1:1"]) == 100
    yield bank
    bank.close()


class Remembers:
    """A learning critic that keeps what it was fitted on, in order."""

    name = "remembers"
    k = 0

    def __init__(self, incremental: bool) -> None:
        self.incremental = incremental
        self.learned: tuple[str, ...] = ()
        self.fits: list[int] = []

    def fit(self, records: Sequence[Record], previous: Any = None) -> Remembers:
        self.fits.append(len(records))
        fitted = Remembers(self.incremental)
        earlier = previous.learned if previous is not None else ()
        fitted.learned = earlier + tuple(record.record_id for record in records)
        return fitted

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        return [Verdict(0.5)] * len(queries)


def learned(store: ModelStore, *pins: Pin) -> tuple[str, ...]:
    fitted = store.at(pins)
    assert isinstance(fitted, Remembers)
    return fitted.learned


def test_every_revision_counts_up_to_16() -> None:
    assert [spaced_revision(revision) for revision in range(17)] == list(range(17))


@given(st.integers(0, 10**6))
def test_a_spaced_revision_lies_at_most_a_16th_behind(revision: int) -> None:
    spaced = spaced_revision(revision)
    assert spaced <= revision and revision - spaced <= revision / 16
    assert spaced_revision(spaced) == spaced


@pytest.mark.parametrize("start", [16, 64, 1024, 2**15])
def test_each_doubling_has_16_spaced_revisions(start: int) -> None:
    assert len({spaced_revision(revision) for revision in range(start, 2 * start)}) == 16


REVISIONS = st.lists(st.integers(0, 151), min_size=1, max_size=12)


@settings(max_examples=20)
@given(REVISIONS)
def test_an_incremental_critic_knows_what_its_pin_holds_in_whatever_order_pins_come(
    bank: SqlBank, revisions: list[int]
) -> None:
    store = ModelStore(bank, Remembers(incremental=True))
    for revision in revisions:
        alive = tuple(record.record_id for record in bank.records("own", until=revision)) if revision else ()
        assert learned(store, Pin("own", revision)) == alive


@pytest.mark.parametrize("critic", [BaseRateCritic(), CountsCritic()], ids=lambda critic: critic.name)
@settings(max_examples=15)
@given(pairs=st.lists(st.tuples(st.integers(0, 151), st.integers(0, 150)), min_size=1, max_size=6))
def test_a_restart_gives_the_same_model_also_with_scopes_that_are_only_read(
    bank: SqlBank, critic: LearningCritic, pairs: list[tuple[int, int]]
) -> None:
    store = ModelStore(bank, critic)
    for own, other in pairs:
        pins = (Pin("own", own), Pin("other", other))
        nothing = [Precedents()] * len(QUERIES)
        restarted = ModelStore(bank, critic).at(pins)
        assert store.at(pins).judge(QUERIES, nothing) == restarted.judge(QUERIES, nothing)


def test_an_incremental_critic_sees_each_record_once(bank: SqlBank) -> None:
    critic = Remembers(incremental=True)
    store = ModelStore(bank, critic)
    for revision in range(100):
        learned(store, Pin("own", revision))
    assert sum(critic.fits) == 99 * 3


def test_removed_records_make_an_incremental_critic_start_anew(bank: SqlBank) -> None:
    store = ModelStore(bank, Remembers(incremental=True))
    assert "own 7:1:1" in learned(store, Pin("own", 99))
    assert "own 7:1:1" not in learned(store, Pin("own", 100))
    assert "own 7:1:1" in learned(store, Pin("own", 99))


def test_fits_are_rarer_while_other_scopes_hold_more() -> None:
    spaced = sorted({spaced_revision(revision, 346) for revision in range(40)})
    assert spaced == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32]
    assert spaced_revision(347, 346) == spaced_revision(347)


def test_a_critic_that_is_not_incremental_is_refitted_only_at_spaced_revisions(bank: SqlBank) -> None:
    critic = Remembers(incremental=False)
    store = ModelStore(bank, critic)
    for revision in range(152):
        learned(store, Pin("own", revision))
    spaced = {spaced_revision(revision) for revision in range(152)}
    assert len(critic.fits) == len(spaced) == 67


@settings(max_examples=20)
@given(REVISIONS)
def test_a_critic_that_is_not_incremental_is_the_same_after_a_restart(
    bank: SqlBank, revisions: list[int]
) -> None:
    running = ModelStore(bank, Remembers(incremental=False))
    for revision in revisions:
        restarted = ModelStore(bank, Remembers(incremental=False))
        pin = Pin("own", revision)
        assert learned(running, pin) == learned(restarted, pin)


def test_own_records_come_after_those_of_scopes_that_are_only_read(bank: SqlBank) -> None:
    known = learned(ModelStore(bank, Remembers(incremental=True)), Pin("own", 1), Pin("other", 1))
    assert [record_id.partition(" ")[0] for record_id in known] == ["other"] * 3 + ["own"] * 3


def test_models_of_other_scopes_are_no_start(bank: SqlBank) -> None:
    store = ModelStore(bank, Remembers(incremental=True))
    learned(store, Pin("other", 3))
    assert all(record_id.startswith("own") for record_id in learned(store, Pin("own", 4)))


def test_one_pin_is_fitted_once(bank: SqlBank) -> None:
    critic = Remembers(incremental=True)
    store = ModelStore(bank, critic)
    assert store.at((Pin("own", 5),)) is store.at((Pin("own", 5),))
    assert len(critic.fits) == 1
