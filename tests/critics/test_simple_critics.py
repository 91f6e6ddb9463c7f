from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ceb_gym.critics.simple import BaseRateCritic, ConstantCritic, CountsCritic, NeighborsCritic
from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Critic, LearningCritic
from ceb_gym.types import HistoryItem, Precedent, Precedents, Query, Record

QUERY = Query("env", "scope", 0, "episode", "task", "state", "act", (), False, 0)
NONE = Precedents()


def record(label: bool, step_index: int = 0, exact_repeat: float = 0.0) -> Record:
    return Record(
        record_id=f"e:{step_index}:1",
        scope="scope",
        episode_id="e",
        step_index=step_index,
        task="task",
        state="state",
        action="act",
        outcome="done",
        label=label,
        vote_share=float(label),
        votes=0,
        confidence=None,
        agrees=None,
        repeated=exact_repeat > 0,
        critic="",
        labeler="",
        created_at=0.0,
        features={"exact_repeat": exact_repeat},
    )


def found(productive: Sequence[float], unproductive: Sequence[float]) -> Precedents:
    return Precedents(
        tuple(Precedent(record(True), similarity) for similarity in productive),
        tuple(Precedent(record(False), similarity) for similarity in unproductive),
    )


def at(step_index: int, *, repeats: bool = False) -> Query:
    history = tuple(HistoryItem("s", "act" if repeats else "other", "o", True, None) for _ in range(2))
    return replace(QUERY, step_index=step_index, history=history if step_index else ())


def confidence(critic: Critic, query: Query = QUERY, precedents: Precedents = NONE) -> float:
    value = critic.judge([query], [precedents])[0].confidence
    assert value is not None
    return value


RECORDS = st.lists(
    st.builds(record, st.booleans(), st.integers(0, 9), st.sampled_from([0.0, 1.0])), max_size=30
)
LEARNING = [BaseRateCritic(), CountsCritic(), NeighborsCritic()]
SIMILARITIES = st.lists(st.floats(0, 1), max_size=4)


def test_constant_gives_its_confidence_to_every_query() -> None:
    assert [verdict.confidence for verdict in ConstantCritic(0.7).judge([QUERY] * 3, [NONE] * 3)] == [0.7] * 3


def test_base_rate_without_records_is_a_half() -> None:
    assert confidence(BaseRateCritic()) == 0.5


def test_base_rate_is_the_smoothed_share_of_productive_records() -> None:
    fitted = BaseRateCritic().fit([record(True)] * 7 + [record(False)])
    assert confidence(fitted) == pytest.approx((7 + 1) / (8 + 2))


def test_counts_tells_steps_and_exact_repeats_apart() -> None:
    fitted = CountsCritic().fit([record(True, 0), record(False, 1), record(True, 2, 1.0), record(False, 2)])
    base = (2 + 1) / (4 + 2)
    assert confidence(fitted, at(0)) == pytest.approx((1 + base) / 2)
    assert confidence(fitted, at(1)) == pytest.approx(base / 2)
    assert confidence(fitted, at(2, repeats=True)) == pytest.approx((1 + base) / 2)
    assert confidence(fitted, at(2)) == pytest.approx(base / 2)


def test_counts_puts_all_steps_from_the_fifth_into_one_cell() -> None:
    fitted = CountsCritic().fit([record(True, 4), record(True, 4), record(False, 9), record(False, 3)])
    assert confidence(fitted, at(4)) == confidence(fitted, at(9)) == confidence(fitted, at(77))
    assert confidence(fitted, at(4)) > confidence(fitted, at(3))


def test_a_cell_without_records_gives_the_base_rate() -> None:
    records = [record(True, 0)] * 3 + [record(False, 0)]
    fitted = CountsCritic().fit(records)
    assert confidence(fitted, at(3)) == BaseRateCritic().fit(records).rate


def test_counts_takes_a_record_without_features_as_no_repeat() -> None:
    fitted = CountsCritic().fit([replace(record(True, 1), features={})])
    assert confidence(fitted, at(1)) > confidence(fitted, at(1, repeats=True))


def test_neighbors_without_precedents_gives_the_base_rate() -> None:
    records = [record(True)] * 3 + [record(False)]
    assert confidence(NeighborsCritic().fit(records)) == pytest.approx(BaseRateCritic().fit(records).rate)


@given(st.floats(0, 1), st.integers(0, 20), st.integers(0, 20))
def test_precedents_equally_near_on_both_sides_leave_the_base_rate(
    similarity: float, productive: int, unproductive: int
) -> None:
    records = [record(True)] * productive + [record(False)] * unproductive
    fitted = NeighborsCritic().fit(records)
    value = confidence(fitted, precedents=found([similarity] * 2, [similarity] * 2))
    assert value == pytest.approx(BaseRateCritic().fit(records).rate)


@given(SIMILARITIES, SIMILARITIES)
def test_neighbors_stays_in_the_unit_interval(productive: list[float], unproductive: list[float]) -> None:
    assert 0 <= confidence(NeighborsCritic(), precedents=found(productive, unproductive)) <= 1


def test_a_nearer_productive_precedent_raises_the_confidence() -> None:
    critic = NeighborsCritic()
    far, near = (confidence(critic, precedents=found([value], [0.5])) for value in (0.4, 0.6))
    assert far < 0.5 < near


@pytest.mark.parametrize("critic", LEARNING, ids=lambda critic: critic.name)
@given(records=RECORDS, cuts=st.lists(st.integers(0, 30), max_size=4), similarities=SIMILARITIES)
def test_fitting_in_parts_equals_fitting_at_once(
    critic: Any, records: list[Record], cuts: list[int], similarities: list[float]
) -> None:
    borders = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    in_parts = None
    for start, end in pairwise(borders):
        in_parts = critic.fit(records[start:end], in_parts)
    queries = [at(index, repeats=repeats) for index in range(7) for repeats in (False, True)]
    precedents = [found(similarities, [0.3])] * len(queries)
    assert in_parts.judge(queries, precedents) == critic.fit(records).judge(queries, precedents)


@pytest.mark.parametrize("critic", LEARNING, ids=lambda critic: critic.name)
def test_fit_depends_on_the_records_and_not_on_the_critic_it_is_called_on(critic: Any) -> None:
    used = critic.fit([record(False, 1)] * 9)
    fresh = used.fit([record(True, 1)])
    assert fresh.judge([at(1)], [NONE]) == critic.fit([record(True, 1)]).judge([at(1)], [NONE])


@pytest.mark.parametrize("critic", LEARNING, ids=lambda critic: critic.name)
def test_fit_leaves_the_earlier_critic_as_it_was(critic: Any) -> None:
    earlier = critic.fit([record(True, 1)])
    before = earlier.judge([at(1)], [NONE])
    critic.fit([record(False, 1)] * 5, earlier)
    assert earlier.judge([at(1)], [NONE]) == before


def test_learning_critics_meet_the_protocol() -> None:
    assert all(isinstance(critic, LearningCritic) for critic in LEARNING)
    assert isinstance(ConstantCritic(), Critic) and not isinstance(ConstantCritic(), LearningCritic)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: ConstantCritic(1.2), "1.2"),
        (lambda: ConstantCritic(float("nan")), "nan"),
        (lambda: ConstantCritic(True), "True"),
        (lambda: BaseRateCritic(0), "prior_weight is 0"),
        (lambda: CountsCritic("much"), "prior_weight is 'much'"),  # type: ignore[arg-type]  # on purpose
        (lambda: NeighborsCritic(k=0), "k is 0"),
        (lambda: NeighborsCritic(k=True), "k is True"),
        (lambda: NeighborsCritic(prior_weight=float("inf")), "prior_weight is inf"),
        (lambda: NeighborsCritic(power=-1.0), "is -1.0"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value(build: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build()
