from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ceb_gym.bank import SqlBank
from ceb_gym.critics.simple import BaseRateCritic, ConstantCritic
from ceb_gym.engine.judging import Judge
from ceb_gym.engine.learning import label_stored
from ceb_gym.errors import CriticError
from ceb_gym.hindsight.rules import CallableLabeler
from ceb_gym.retrieval.simple import RecentRetriever
from ceb_gym.testing import make_trajectory
from ceb_gym.types import Pin, Precedents, Query, Record, TrajectoryKey, Verdict

QUERY = Query("env", "scope", 0, "running", "task", "state", "act", (), False, 0)
AT_START = (Pin("scope", 0),)


class Answers:
    """A critic that answers with what a function says."""

    name = "answers"
    k = 2

    def __init__(self, answer: Callable[[Sequence[Query], Sequence[Precedents]], Any]) -> None:
        self._answer = answer

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> Any:
        return self._answer(queries, precedents)


def saying(confidence: Any) -> Answers:
    return Answers(lambda queries, precedents: [Verdict(confidence) for _ in queries])


def raising(error: Exception) -> Answers:
    def answer(queries: Any, precedents: Any) -> Any:
        raise error

    return Answers(answer)


@pytest.fixture
def bank() -> Iterator[SqlBank]:
    bank = SqlBank("memory:")
    yield bank
    bank.close()


def store(bank: SqlBank, episode: str, label: bool, scope: str = "scope") -> None:
    bank.add_trajectory(make_trajectory(episode, 1, scope=scope))
    label_stored(bank, CallableLabeler(lambda trajectory: [label]), TrajectoryKey(episode, 0))


def judge_with(bank: SqlBank, critic: Any, on_error: Any = "raise") -> Judge:
    return Judge(bank, RecentRetriever(bank), critic, on_error)


@pytest.mark.parametrize(
    "confidence",
    [1.2, -0.1, float("nan"), float("inf"), True, False, np.True_, "0.7", b"1", [0.5], object(), 10**400],
)
def test_a_confidence_that_is_no_number_in_the_unit_interval_is_an_error(
    bank: SqlBank, confidence: Any
) -> None:
    with pytest.raises(CriticError, match=r"answers returned the confidence .* in \[0, 1\], or None"):
        judge_with(bank, saying(confidence)).judge([QUERY], [AT_START])


@pytest.mark.parametrize("confidence", [0, 1, np.float32(0.25), np.float64(0.25), np.int64(1), np.array(0.5)])
def test_numbers_of_any_kind_become_plain_floats(bank: SqlBank, confidence: Any) -> None:
    verdict, _ = judge_with(bank, saying(confidence)).judge([QUERY], [AT_START])[0]
    assert type(verdict.confidence) is float and verdict.confidence == float(confidence)


def test_unscored_stays_unscored(bank: SqlBank) -> None:
    assert judge_with(bank, saying(None)).judge([QUERY], [AT_START])[0][0].confidence is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "0 verdicts for 2 queries"),
        ([Verdict(0.5)] * 3, "3 verdicts for 2 queries"),
        ([Verdict(0.5), 0.5], "returned 0.5, which is no Verdict"),
        (None, "returned None, which is no list"),
        (iter([Verdict(0.5)] * 2), "no list of verdicts"),
        ([Verdict(0.5, rationale=7)] * 2, "rationale 7"),  # type: ignore[arg-type]  # on purpose
        ([Verdict(0.5, source=None)] * 2, "source None"),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_verdicts_that_do_not_fit_the_queries_are_an_error(bank: SqlBank, answer: Any, said: str) -> None:
    critic = Answers(lambda queries, precedents: answer)
    with pytest.raises(CriticError, match=said):
        judge_with(bank, critic).judge([QUERY] * 2, [AT_START] * 2)


def test_a_critic_that_raises_is_named_and_its_error_kept(bank: SqlBank) -> None:
    with pytest.raises(CriticError, match="answers raised OSError: no network") as caught:
        judge_with(bank, raising(OSError("no network"))).judge([QUERY], [AT_START])
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("critic", [saying(1.2), raising(OSError()), Answers(lambda *both: None)])
def test_unscored_on_error_gives_each_query_a_verdict_without_confidence(bank: SqlBank, critic: Any) -> None:
    judged = judge_with(bank, critic, "unscored").judge([QUERY] * 3, [AT_START] * 3)
    assert [verdict.confidence for verdict, _ in judged] == [None] * 3
    assert all("unscored" in verdict.rationale and verdict.source == "answers" for verdict, _ in judged)


def test_another_critic_on_error_judges_in_its_place(bank: SqlBank) -> None:
    verdict, _ = judge_with(bank, raising(OSError()), ConstantCritic(0.3)).judge([QUERY], [AT_START])[0]
    assert (verdict.confidence, verdict.source) == (0.3, "constant:0.3")


def test_a_learning_critic_in_place_of_another_has_learned_too(bank: SqlBank) -> None:
    store(bank, "a", True)
    verdict, _ = judge_with(bank, raising(OSError()), BaseRateCritic()).judge([QUERY], [(Pin("scope", 1),)])[
        0
    ]
    assert verdict.confidence == pytest.approx(2 / 3)


def test_a_critic_that_cannot_learn_is_handled_like_one_that_cannot_judge(bank: SqlBank) -> None:
    class CannotLearn(BaseRateCritic):
        def fit(self, records: Sequence[Record], previous: Any = None) -> Any:
            raise ZeroDivisionError("no positives")

    with pytest.raises(CriticError, match=r"base_rate raised ZeroDivisionError.*no positives"):
        judge_with(bank, CannotLearn()).judge([QUERY], [AT_START])
    assert judge_with(bank, CannotLearn(), "unscored").judge([QUERY], [AT_START])[0][0].confidence is None


def test_a_fit_that_gives_no_critic_is_an_error(bank: SqlBank) -> None:
    class Forgets(BaseRateCritic):
        def fit(self, records: Sequence[Record], previous: Any = None) -> Any:
            self.seen = records

    with pytest.raises(CriticError, match="returned None from `fit`"):
        judge_with(bank, Forgets()).judge([QUERY], [AT_START])


def test_the_verdict_names_the_critic_unless_it_names_itself(bank: SqlBank) -> None:
    assert judge_with(bank, saying(0.5)).judge([QUERY], [AT_START])[0][0].source == "answers"
    named = Answers(lambda queries, precedents: [Verdict(0.5, source="larger model")])
    assert judge_with(bank, named).judge([QUERY], [AT_START])[0][0].source == "larger model"


def test_queries_pinned_at_different_revisions_are_each_judged_by_their_own_model(bank: SqlBank) -> None:
    for number, label in enumerate([True, True, False, True]):
        store(bank, f"episode {number}", label)
    revisions = [4, 0, 2, 4, 3]
    together = judge_with(bank, BaseRateCritic()).judge(
        [replace(QUERY, revision=revision) for revision in revisions],
        [(Pin("scope", revision),) for revision in revisions],
    )
    assert [verdict.confidence for verdict, _ in together] == pytest.approx([4 / 6, 0.5, 0.75, 4 / 6, 3 / 5])


def test_precedents_come_from_each_querys_own_pin(bank: SqlBank) -> None:
    for number in range(3):
        store(bank, f"episode {number}", True)
    judged = judge_with(bank, saying(0.5)).judge(
        [QUERY] * 3, [(Pin("scope", revision),) for revision in (2, 0, 1)]
    )
    newest = [[found.record.episode_id for found in precedents.productive] for _, precedents in judged]
    assert newest == [["episode 1", "episode 0"], [], ["episode 0"]]


def test_a_critic_without_k_gets_no_precedents(bank: SqlBank) -> None:
    store(bank, "a", True)
    _, precedents = judge_with(bank, ConstantCritic()).judge([QUERY], [(Pin("scope", 1),)])[0]
    assert precedents.productive == ()


def test_nothing_to_judge_gives_nothing(bank: SqlBank) -> None:
    assert judge_with(bank, saying(0.5)).judge([], []) == []
    assert judge_with(bank, BaseRateCritic()).judge([], []) == []
