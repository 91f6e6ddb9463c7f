from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ceb_gym.streams.reward_rules import reward_level_labels


@pytest.mark.parametrize(
    ("rewards", "labels"),
    [
        ([], []),
        ([0.67, 0.73, 0.73], [True, True, True]),
        ([0.67, 0.60, 0.60], [True, False, False]),
        ([0.5, 0.69], [True, True]),
        ([0.9, 0.8], [True, False]),
        ([0.9, 0.9, 0.9], [True, False, True]),
        ([0.6, 0.65, 0.6], [True, False, False]),
        ([0.05], [False]),
        ([0.051], [True]),
        ([0.69, 0.69], [True, False]),
        ([0.7, 0.7], [True, True]),
        ([0.7000000000000001, 0.7], [True, True]),
    ],
)
def test_step_is_productive_when_the_level_rises_or_a_good_last_level_holds(
    rewards: list[float], labels: list[bool]
) -> None:
    assert reward_level_labels(rewards, baseline=0.0) == labels


def test_baseline_decides_on_the_first_step() -> None:
    assert reward_level_labels([0.67, 0.4], baseline=0.67) == [False, False]
    assert reward_level_labels([0.73, 0.4], baseline=0.67) == [True, False]


@pytest.mark.parametrize(("before", "after"), [(0.78, 0.8300000000000001), (0.83, 0.88), (0.67, 0.72)])
def test_rise_of_exactly_five_hundredths_never_counts(before: float, after: float) -> None:
    assert reward_level_labels([before, after, 0.0], baseline=0.0)[1] is False


def test_raw_floats_can_be_asked_for() -> None:
    assert reward_level_labels([0.83, 0.88, 0.0], baseline=0.0, decimals=None)[1] is True


def test_good_level_counts_only_where_the_episode_has_ended() -> None:
    assert reward_level_labels([0.9, 0.9], baseline=0.0, ended=False) == [True, False]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=12), st.integers(0, 10_000))
def test_rule_equals_exact_arithmetic_on_levels_of_four_places(levels: list[int], baseline: int) -> None:
    expected = []
    for index, level in enumerate(levels):
        before = levels[index - 1] if index else baseline
        rises = Fraction(level - before, 10_000) > Fraction(5, 100)
        holds = index == len(levels) - 1 and level >= 7_000 and level >= before
        expected.append(rises or holds)
    got = reward_level_labels([level / 10_000 for level in levels], baseline=baseline / 10_000)
    assert got == expected


def test_huge_rewards_do_not_overflow() -> None:
    assert reward_level_labels([-1.7e308, 1.7e308], baseline=0.0) == [False, True]
