from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ceb_gym.build.parts import make_labeler
from ceb_gym.errors import ConfigurationError, LabelerError
from ceb_gym.hindsight.rules import CallableLabeler, ReturnLabeler, RewardLevelLabeler, SuccessLabeler
from ceb_gym.protocols import HindsightLabeler
from ceb_gym.testing import make_step, make_trajectory
from ceb_gym.types import StepLabel, Trajectory


def episode(rewards: Sequence[float | None], **changes: Any) -> Trajectory:
    steps = [make_step(index, reward=reward) for index, reward in enumerate(rewards)]
    return make_trajectory(steps=steps, **changes)


def given_labels(
    labeler: HindsightLabeler, trajectory: Trajectory, past: Sequence[Sequence[float]] = ()
) -> list[bool | None]:
    return [label.label for label in labeler.label(trajectory, past)]


EXECUTED = make_step(0, reward=1.0)
DEFERRED = make_step(1, executed=False, outcome=None, reward=None, decision="defer")
BROKEN_OFF = make_step(2, outcome=None, reward=None)
MIXED = make_trajectory(steps=[EXECUTED, DEFERRED, BROKEN_OFF], ending="abandoned")
EVERY_LABELER = [
    RewardLevelLabeler(),
    ReturnLabeler(),
    SuccessLabeler(reward_above=0.5),
    CallableLabeler(lambda trajectory: [True]),
]


@pytest.mark.parametrize("labeler", EVERY_LABELER, ids=lambda labeler: labeler.name)
def test_steps_that_were_not_executed_or_have_no_outcome_get_no_label(labeler: HindsightLabeler) -> None:
    assert [label.index for label in labeler.label(MIXED, [(0.0,)])] == [0]


@given(st.integers(0, 95))
def test_a_rise_of_exactly_five_hundredths_never_counts(hundredths: int) -> None:
    rewards = [hundredths / 100, (hundredths + 5) / 100, 0.0]
    assert given_labels(RewardLevelLabeler(), episode(rewards))[1] is False


@given(st.integers(0, 94))
def test_a_rise_of_six_hundredths_always_counts(hundredths: int) -> None:
    rewards = [hundredths / 100, (hundredths + 6) / 100, 0.0]
    assert given_labels(RewardLevelLabeler(), episode(rewards))[1] is True


def test_raw_floats_fall_both_ways() -> None:
    raw = RewardLevelLabeler(decimals=None)
    assert given_labels(raw, episode([0.83, 0.88, 0.0]))[1] is True
    assert given_labels(raw, episode([0.67, 0.72, 0.0]))[1] is False


@pytest.mark.parametrize(("baseline", "first"), [(0, True), (0.67, False), ("initial", False)])
def test_the_first_reward_is_compared_with_the_baseline(baseline: Any, first: bool) -> None:
    trajectory = episode([0.7, 0.1], initial_reward=0.67)
    assert given_labels(RewardLevelLabeler(first_baseline=baseline), trajectory)[0] is first


def test_a_missing_initial_reward_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(LabelerError, match=r"states no initial reward.*first_baseline=0"):
        RewardLevelLabeler("initial").label(episode([0.5]))


@pytest.mark.parametrize(
    ("rewards", "ending", "last"),
    [
        ([0.8, 0.8], "terminated", True),
        ([0.8, 0.8], "segmented", False),
        ([0.8, 0.79], "terminated", False),
        ([0.69, 0.69], "terminated", False),
        ([0.7, 0.7], "truncated", True),
    ],
)
def test_a_last_step_at_a_good_level_that_does_not_fall_is_productive(
    rewards: list[float], ending: Any, last: bool
) -> None:
    assert given_labels(RewardLevelLabeler(), episode(rewards, ending=ending))[-1] is last


@pytest.mark.parametrize("labeler", [RewardLevelLabeler(), ReturnLabeler()], ids=lambda each: each.name)
def test_an_unknown_reward_leaves_the_episode_unlabelled(labeler: HindsightLabeler) -> None:
    assert given_labels(labeler, episode([0.1, None, 0.9]), [(0.0, 0.0, 0.0)]) == [None, None, None]


def test_return_compares_with_the_median_at_the_same_step() -> None:
    past = [(1.0, 1.0), (3.0, 0.0), (2.0, 5.0)]  # returns to go (gamma 1): 2, 3, 7 then 1, 0, 5
    assert given_labels(ReturnLabeler(1.0), episode([2.5, 1.0]), past) == [True, False]


def test_return_discounts() -> None:
    assert given_labels(ReturnLabeler(0.5), episode([0.0, 1.0]), [(0.6, 0.0)]) == [False, True]
    assert given_labels(ReturnLabeler(0.5), episode([0.0, 1.0]), [(0.4, 0.0)]) == [True, True]


def test_return_equal_to_the_median_is_unproductive() -> None:
    assert given_labels(ReturnLabeler(0.9), episode([0.1, 0.2]), [(0.1, 0.2)]) == [False, False]


def test_return_leaves_unlabelled_where_no_earlier_episode_got_as_far() -> None:
    assert given_labels(ReturnLabeler(), episode([1.0, 1.0, 1.0]), [(0.0, 0.0)]) == [True, True, None]
    assert given_labels(ReturnLabeler(), episode([1.0])) == [None]


@pytest.mark.parametrize("ending", ["abandoned", "segmented"])
def test_rules_on_the_whole_episode_leave_an_unfinished_one_unlabelled(ending: Any) -> None:
    unfinished = episode([1.0, 1.0], ending=ending, success=None)
    assert given_labels(ReturnLabeler(), unfinished, [(0.0, 0.0)]) == [None, None]
    assert given_labels(SuccessLabeler(reward_above=0.5), unfinished) == [None, None]


@pytest.mark.parametrize("success", [True, False, None])
def test_success_gives_every_step_the_final_outcome(success: bool | None) -> None:
    assert given_labels(SuccessLabeler(), episode([0.0, 1.0], success=success)) == [success, success]


def test_success_reads_the_last_reward_only_where_the_environment_says_nothing() -> None:
    labeler = SuccessLabeler(reward_above=0.5)
    assert given_labels(labeler, episode([0.0, 1.0], success=None)) == [True, True]
    assert given_labels(labeler, episode([1.0, 0.5], success=None)) == [False, False]
    assert given_labels(labeler, episode([0.0, 1.0], success=False)) == [False, False]


def test_an_episode_without_executed_steps_has_no_labels() -> None:
    empty = make_trajectory(steps=[DEFERRED])
    assert [labeler.label(empty) for labeler in EVERY_LABELER[:3]] == [[], [], []]


def test_labels_of_rules_are_certain() -> None:
    assert RewardLevelLabeler().label(episode([0.5, 0.1])) == [
        StepLabel(0, True, 1.0),
        StepLabel(1, False, 0.0),
    ]


def test_a_callable_labels_in_order_with_truth_values_or_none() -> None:
    labeler = CallableLabeler(lambda trajectory: [True, None, np.False_])
    assert given_labels(labeler, make_trajectory(steps=3)) == [True, None, False]


def test_a_callable_may_return_step_labels() -> None:
    labels = [StepLabel(2, True, 0.8)]
    assert CallableLabeler(lambda trajectory: labels).label(make_trajectory(steps=3)) == labels


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([True], "1 labels for 3 executed steps"),
        ([], "0 labels for 3 executed steps"),
        ([True, False, 2], "returned 2 as a label"),
        ([True, False, "yes"], "returned 'yes' as a label"),
        ([True, False, float("nan")], "returned nan as a label"),
        ([True, False, np.array([1, 0])], r"returned array\(\[1, 0\]\) as a label"),
        ([True, False, StepLabel(2, True)], "as a label"),
        (None, "returned None"),
        (True, "returned True"),
    ],
)
def test_a_callable_with_an_unusable_answer_is_an_error(answer: Any, said: str) -> None:
    with pytest.raises(LabelerError, match=said):
        CallableLabeler(lambda trajectory: answer).label(make_trajectory(steps=3))


LABELERS = st.one_of(
    st.builds(
        RewardLevelLabeler,
        st.just("initial") | st.floats(-1e30, 1e30) | st.integers(-3, 3),
        st.none() | st.integers(2, 12),
    ),
    st.builds(ReturnLabeler, st.floats(0, 1, exclude_min=True), st.integers(1, 1000)),
    st.builds(SuccessLabeler, st.none() | st.floats(-1e30, 1e30)),
)


@given(LABELERS)
def test_the_canonical_name_builds_the_same_labeler(labeler: Any) -> None:
    again = make_labeler(labeler.name)
    assert type(again) is type(labeler) and vars(again) == vars(labeler)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: RewardLevelLabeler(float("nan")), "first_baseline is nan"),
        (lambda: RewardLevelLabeler("first"), "first_baseline is 'first'"),
        (lambda: RewardLevelLabeler(True), "first_baseline is True"),
        (lambda: RewardLevelLabeler(decimals=1), "decimals is 1"),
        (lambda: ReturnLabeler(0), "gamma is 0"),
        (lambda: ReturnLabeler(1.5), "gamma is 1.5"),
        (lambda: ReturnLabeler(window=0), "window is 0"),
        (lambda: SuccessLabeler(float("inf")), "reward_above is inf"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value(build: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build()
