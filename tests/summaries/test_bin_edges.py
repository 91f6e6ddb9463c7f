from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from ceb_gym.bank import SqlBank
from ceb_gym.summaries.boxes import CALIBRATION_VALUES
from ceb_gym.summaries.generic import GenericSummarizer

SPACE = spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 1.0]), dtype=np.float64)
VALUE = np.array([0.3, 0.3])
ACTIONS = spaces.Discrete(2)


@pytest.fixture
def bank() -> Iterator[SqlBank]:
    bank = SqlBank("memory:")
    yield bank
    bank.close()


def bound(bank: SqlBank, scope: str = "scope", space: spaces.Space[Any] = SPACE) -> GenericSummarizer:
    summarizer = GenericSummarizer(space, ACTIONS)
    summarizer.bind(bank, scope)
    return summarizer


def words(summarizer: GenericSummarizer, value: Any = VALUE) -> set[str]:
    return set(summarizer.state(value, {}, 0).split())


def see(
    summarizer: GenericSummarizer, seed: int, count: int = CALIBRATION_VALUES, scale: float = 1.0
) -> None:
    """Observes outcomes of one long episode."""
    for value in np.random.default_rng(seed).normal(scale=scale, size=(count, 2)):
        summarizer.outcome(value, {})


def reset(summarizer: GenericSummarizer) -> None:
    summarizer.task(VALUE, {}, {})


def test_words_stay_the_same_within_an_episode(bank: SqlBank) -> None:
    summarizer = bound(bank)
    reset(summarizer)
    before = words(summarizer)
    see(summarizer, seed=1, count=3 * CALIBRATION_VALUES)
    assert words(summarizer) == before


def test_edges_are_frozen_at_the_first_reset_after_enough_values(bank: SqlBank) -> None:
    summarizer = bound(bank)
    see(summarizer, seed=1, count=CALIBRATION_VALUES - 1)
    reset(summarizer)
    before = words(summarizer)
    reset(summarizer)
    frozen = words(summarizer)
    assert frozen != before
    see(summarizer, seed=2, count=3 * CALIBRATION_VALUES, scale=50)
    reset(summarizer)
    assert words(summarizer) == frozen


def test_words_before_and_after_freezing_never_meet_in_a_dimension_without_bounds(bank: SqlBank) -> None:
    summarizer = bound(bank)
    grid = [np.array([value, 0.5]) for value in np.linspace(-500, 500, 400)]
    before = set().union(*(words(summarizer, value) for value in grid))
    see(summarizer, seed=1)
    reset(summarizer)
    after = set().union(*(words(summarizer, value) for value in grid))
    assert {word for word in before & after if word.startswith("state_00")} == set()


def test_dimensions_with_bounds_keep_their_words(bank: SqlBank) -> None:
    summarizer = bound(bank)
    before = {word for word in words(summarizer) if word.startswith("state_01")}
    see(summarizer, seed=1)
    reset(summarizer)
    assert before and before <= words(summarizer)


def test_frozen_edges_tell_the_values_apart_that_were_seen(bank: SqlBank) -> None:
    summarizer = bound(bank)
    see(summarizer, seed=1, scale=0.01)
    values = [np.array([value, 0.5]) for value in (-0.01, 0.0, 0.01)]
    assert len({frozenset(words(summarizer, value)) for value in values}) < 3
    reset(summarizer)
    assert len({frozenset(words(summarizer, value)) for value in values}) == 3


def test_the_first_writer_wins_and_all_processes_get_the_same_words(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    banks = [SqlBank(url) for _ in range(3)]
    first, second, third = (bound(bank) for bank in banks)
    see(first, seed=1)
    see(second, seed=2, scale=9)
    for summarizer in (first, second, third):
        reset(summarizer)
    assert words(first) == words(second) == words(third) == words(bound(banks[2]))
    for bank in banks:
        bank.close()


def test_scopes_have_edges_of_their_own(bank: SqlBank) -> None:
    one, other = bound(bank, "one"), bound(bank, "other")
    see(one, seed=1)
    see(other, seed=1, scale=100)
    reset(one)
    reset(other)
    assert words(one) != words(other)


def test_binding_to_another_scope_forgets_the_first(bank: SqlBank) -> None:
    summarizer, fresh = bound(bank, "one"), bound(bank, "other")
    see(summarizer, seed=1)
    reset(summarizer)
    summarizer.bind(bank, "other")
    assert words(summarizer) == words(fresh)
    reset(summarizer)
    assert bank.setting("other", "box_edges:state:2:1") is None


def test_a_bank_that_is_only_read_keeps_the_words_of_its_records(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    writing = SqlBank(url)
    reading = SqlBank(url, read_only=True)
    summarizer = bound(reading)
    before = words(summarizer)
    for seed in range(3):
        see(summarizer, seed)
        reset(summarizer)
    assert words(summarizer) == before
    writer = bound(writing)
    see(writer, seed=1)
    reset(writer)
    reset(summarizer)
    assert words(summarizer) == words(writer) != before
    writing.close()
    reading.close()


def test_values_that_are_not_finite_or_do_not_fit_calibrate_nothing(bank: SqlBank) -> None:
    summarizer = bound(bank)
    before = words(summarizer)
    for _ in range(CALIBRATION_VALUES):
        for value in (np.array([np.nan, 0.5]), np.array([np.inf, 0.5]), np.zeros(5), "text", None):
            summarizer.outcome(value, {})
    reset(summarizer)
    assert words(summarizer) == before


def test_boxes_inside_dicts_and_tuples_are_calibrated_too(bank: SqlBank) -> None:
    inner = spaces.Box(-np.inf, np.inf, (1,))
    summarizer = bound(bank, space=spaces.Dict({"a": spaces.Tuple((inner, ACTIONS))}))
    value = {"a": (np.array([0.2], np.float32), 1)}
    before = words(summarizer, value)
    for number in np.linspace(-1, 1, CALIBRATION_VALUES):
        summarizer.outcome({"a": (np.array([number], np.float32), 0)}, {})
    summarizer.task(value, {}, {})
    assert words(summarizer, value) != before
    assert words(bound(bank, space=spaces.Dict({"a": spaces.Tuple((inner, ACTIONS))})), value) == words(
        summarizer, value
    )


@pytest.mark.parametrize("key", ["x" * 1_000, "nul\x00", "\ud800"])
def test_keys_that_no_bank_can_store_do_not_stop_the_freezing(bank: SqlBank, key: str) -> None:
    summarizer = bound(bank, space=spaces.Dict({key: spaces.Box(-np.inf, np.inf, (1,))}))
    value = {key: np.array([0.2], np.float32)}
    before = words(summarizer, value)
    for number in np.linspace(-1, 1, CALIBRATION_VALUES):
        summarizer.outcome({key: np.array([number], np.float32)}, {})
    summarizer.task(value, {}, {})
    assert words(summarizer, value) != before


def test_a_scope_used_with_another_space_does_not_take_its_edges(bank: SqlBank) -> None:
    summarizer = bound(bank)
    see(summarizer, seed=1)
    reset(summarizer)
    other = bound(bank, space=spaces.Box(-np.inf, np.inf, (2,), np.float64))
    assert words(other, np.array([0.3, 0.3]))
