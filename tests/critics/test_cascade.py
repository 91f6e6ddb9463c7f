from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ceb_gym.build.parts import make_critic
from ceb_gym.critics.cascade import Alternative, CascadeCritic, LearningCascade, cascade
from ceb_gym.critics.rules import Rule, RulesCritic
from ceb_gym.critics.simple import BaseRateCritic, ConstantCritic, CountsCritic, NeighborsCritic
from ceb_gym.errors import ConfigurationError, CriticError
from ceb_gym.protocols import LearningCritic
from ceb_gym.types import Precedent, Precedents, Query, Record, Verdict

QUERY = Query("bash", "scope", 0, "episode", "task", "state", "ls", (), False, 0)
RISKY = replace(QUERY, action="rm x")
NONE = Precedents()


def make_record(number: int, label: bool = True) -> Record:
    return Record(
        record_id=f"e:{number}:1",
        scope="scope",
        episode_id="e",
        step_index=number,
        task="task",
        state="state",
        action="act",
        outcome="done",
        label=label,
        vote_share=float(label),
        votes=0,
        confidence=None,
        agrees=None,
        repeated=False,
        critic="",
        labeler="",
        created_at=0.0,
    )


class Notes:
    """A critic that notes what it is asked and answers by a function of the query."""

    def __init__(self, name: str, answer: Any = 0.5, k: int = 0) -> None:
        self.name = name
        self.k = k
        self.answer = answer
        self.asked: list[list[str]] = []
        self.shown: list[int] = []

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        self.asked.append([query.action for query in queries])
        self.shown.extend(len(found.productive) + len(found.unproductive) for found in precedents)
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, Callable):  # type: ignore[arg-type]  # a function or a number
            return [Verdict(self.answer(query), f"{self.name} says") for query in queries]
        return [Verdict(self.answer, f"{self.name} says", usage={"requests": 1.0}) for _ in queries]


def sources(critic: CascadeCritic, *queries: Query) -> list[str]:
    return [verdict.source for verdict in critic.judge(queries, [NONE] * len(queries))]


def at(revision: int) -> Query:
    return replace(QUERY, revision=revision)


def test_the_first_critic_answers_and_the_other_is_not_asked() -> None:
    other = Notes("b")
    assert sources(cascade(Notes("a"), other), QUERY) == ["a"]
    assert other.asked == []


def test_an_alternative_answers_while_the_scope_has_fewer_finished_episodes() -> None:
    critic = cascade(Notes("a"), Alternative(Notes("b"), until=30))
    assert sources(critic, at(0), at(29), at(30), at(31)) == ["b", "b", "a", "a"]


def test_a_chain_of_three_follows_each_its_own_until() -> None:
    critic = cascade(Notes("a"), Alternative(Notes("b"), until=30), Alternative(Notes("c"), until=5))
    assert sources(critic, at(4), at(5), at(29), at(30)) == ["c", "b", "b", "a"]


def test_risky_steps_go_to_the_alternative() -> None:
    critic = cascade(Notes("a"), Alternative(Notes("b"), route="risk"))
    assert sources(critic, QUERY, RISKY) == ["a", "b"]


def test_the_rules_of_the_cascade_itself_say_what_is_risky() -> None:
    mine = Rule("mine/jump", "any", lambda action: action.text == "jump", 0.2)
    critic = cascade(Notes("a"), Alternative(RulesCritic(rules=[mine]), route="risk"))
    jump = replace(QUERY, env_id="CartPole-v1", action="jump")
    verdict = critic.judge([jump], [NONE])[0]
    assert (verdict.confidence, verdict.rationale) == (0.2, "rule mine/jump: jump")


FAILURES = pytest.mark.parametrize(
    ("answer", "said"),
    [
        (OSError("no network"), "a raised OSError: no network"),
        (CriticError("Critic a has no key"), "a has no key"),
        (1.5, "1.5"),
        ("high", "'high'"),
    ],
    ids=["raises", "CriticError", "above 1", "text"],
)


@FAILURES
def test_a_failing_critic_is_replaced_by_the_next_which_says_so(answer: Any, said: str) -> None:
    verdict = cascade(Notes("a", answer), Notes("b")).judge([QUERY], [NONE])[0]
    assert (verdict.confidence, verdict.source) == (0.5, "b")
    assert verdict.rationale.startswith("b says [in place of another: ") and said in verdict.rationale


def test_an_unscored_query_is_passed_on() -> None:
    critic = cascade(RulesCritic(), Notes("b"))
    assert sources(critic, RISKY, QUERY) == ["rules", "b"]


def test_a_cold_alternative_that_leaves_a_step_unscored_passes_it_back() -> None:
    critic = cascade(Notes("a"), Alternative(RulesCritic(), until=30))
    assert sources(critic, RISKY, QUERY) == ["rules", "a"]


def test_too_few_verdicts_pass_all_queries_on() -> None:
    class Short(Notes):
        def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
            return super().judge(queries, precedents)[1:]

    assert sources(cascade(Short("a"), Notes("b")), QUERY, RISKY) == ["b", "b"]


def test_one_bad_verdict_of_a_batch_passes_only_its_own_query_on() -> None:
    first = Notes("a", lambda query: 7.0 if query is RISKY else 0.4)
    assert sources(cascade(first, Notes("b")), QUERY, RISKY, QUERY) == ["a", "b", "a"]


@FAILURES
def test_when_all_fail_the_error_names_each(answer: Any, said: str) -> None:
    with pytest.raises(CriticError) as error:
        cascade(Notes("a", answer), RulesCritic(), Notes("c", OSError("gone"))).judge([QUERY], [NONE])
    assert said in str(error.value)
    assert "rules left it unscored" in str(error.value) and "c raised OSError: gone" in str(error.value)


def test_a_query_that_all_leave_unscored_stays_unscored() -> None:
    verdict = cascade(Notes("a", lambda query: None), RulesCritic()).judge([QUERY], [NONE])[0]
    assert (verdict.confidence, verdict.source) == (None, "a | rules")
    assert "a left it unscored" in verdict.rationale and "rules left it unscored" in verdict.rationale


def test_each_critic_is_asked_once_for_its_own_queries_in_their_order() -> None:
    first = Notes("a", lambda query: None if query.action in "ce" else 0.1)
    other = Notes("b", lambda query: ord(query.action) / 1000)
    queries = [replace(QUERY, action=action, revision=9 * (action != "d")) for action in "abcde"]
    verdicts = cascade(first, Alternative(other, until=5)).judge(queries, [NONE] * 5)
    assert (first.asked, other.asked) == ([["a", "b", "c", "e"]], [["c", "d", "e"]])
    assert [verdict.confidence for verdict in verdicts] == [0.1, 0.1, 0.099, 0.1, 0.101]


def test_a_batch_gives_what_single_judgements_give() -> None:
    critic = cascade(
        Notes("a", lambda query: None if query.step_index % 3 == 0 else 0.3),
        Alternative(Notes("b", lambda query: None if query.step_index % 2 else 0.6), until=5, route="risk"),
        Alternative(RulesCritic(other=0.9), until=2),
    )
    queries = [
        replace(base, revision=revision, step_index=step)
        for base in (QUERY, RISKY)
        for revision in (0, 3, 7)
        for step in range(4)
    ]
    together = critic.judge(queries, [NONE] * len(queries))
    assert together == [critic.judge([query], [NONE])[0] for query in queries]


def test_nothing_to_judge_asks_nobody() -> None:
    first = Notes("a")
    assert cascade(first, Notes("b")).judge([], []) == [] and first.asked == []


def test_each_critic_sees_only_its_own_first_precedents() -> None:
    found = Precedents(
        tuple(Precedent(make_record(number), 0.5) for number in range(5)),
        tuple(Precedent(make_record(number), 0.5) for number in range(5, 8)),
    )
    parts = [Notes("a", lambda query: None, k=2), Notes("b", lambda query: None, k=4), Notes("c")]
    critic = cascade(*parts)
    critic.judge([QUERY], [found])
    assert critic.k == 4
    assert [part.shown for part in parts] == [[4], [7], [0]]


def test_what_was_spent_on_all_critics_is_added_up() -> None:
    class Unscored(Notes):
        def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
            return [replace(each, confidence=None) for each in super().judge(queries, precedents)]

    verdict = cascade(Unscored("a"), Notes("b")).judge([QUERY], [NONE])[0]
    assert verdict.usage == {"requests": 2.0}


RECORDS = [make_record(number, label=number % 3 == 0) for number in range(12)]


class AtOnce(BaseRateCritic):
    """Learns from all records only."""

    name = "at_once"
    incremental = False

    def fit(self, records: Sequence[Record], previous: Any = None) -> Any:
        assert previous is None
        fitted = AtOnce()
        counted = BaseRateCritic().fit(records)
        fitted._productive, fitted._total = counted._productive, counted._total
        return fitted


def test_a_cascade_learns_exactly_if_a_part_does() -> None:
    assert not isinstance(cascade(ConstantCritic(), RulesCritic()), LearningCritic)
    assert isinstance(cascade(ConstantCritic(), CountsCritic()), LearningCritic)
    assert isinstance(cascade(CountsCritic(), RulesCritic()), LearningCritic)


def test_a_cascade_is_incremental_if_all_its_learning_parts_are() -> None:
    both: Any = cascade(CountsCritic(), RulesCritic(), NeighborsCritic())
    one: Any = cascade(CountsCritic(), AtOnce())
    assert (both.incremental, one.incremental) == (True, False)


@pytest.mark.parametrize("build", [CountsCritic, AtOnce], ids=["incremental", "at once"])
def test_fit_teaches_every_part_all_records(build: Any) -> None:
    critic: Any = cascade(ConstantCritic(), BaseRateCritic(), Alternative(build(), until=5))
    fitted = critic.fit(RECORDS)
    assert fitted.judge([at(0)], [NONE]) == build().fit(RECORDS).judge([at(0)], [NONE])
    other: Any = cascade(Notes("a", OSError()), BaseRateCritic()).fit(RECORDS)  # type: ignore[attr-defined]  # learns
    assert other.judge([QUERY], [NONE])[0].confidence == BaseRateCritic().fit(RECORDS).rate


def test_fitting_in_parts_equals_fitting_at_once() -> None:
    critic: Any = cascade(NeighborsCritic(), Alternative(CountsCritic(), until=5))
    queries = [at(revision) for revision in (0, 9)]
    in_parts = None
    for start, end in pairwise([0, 3, 3, 7, 12]):
        in_parts = critic.fit(RECORDS[start:end], in_parts)
    assert in_parts is not None
    assert in_parts.judge(queries, [NONE] * 2) == critic.fit(RECORDS).judge(queries, [NONE] * 2)


def test_fit_leaves_the_earlier_cascade_as_it_was() -> None:
    critic: Any = cascade(BaseRateCritic(), RulesCritic())
    earlier = critic.fit(RECORDS[:3])
    before = earlier.judge([QUERY], [NONE])
    critic.fit(RECORDS[3:], earlier)
    assert earlier.judge([QUERY], [NONE]) == before
    assert critic.judge([QUERY], [NONE])[0].confidence == 0.5


def test_a_part_that_cannot_learn_is_replaced_and_misses_no_record_when_it_can_again() -> None:
    class Moody(BaseRateCritic):
        name = "moody"
        fails = True

        def fit(self, records: Sequence[Record], previous: Any = None) -> Any:
            if Moody.fails:
                raise ZeroDivisionError("no positives")
            return super().fit(records, previous)

    critic: Any = cascade(Moody(), CountsCritic())
    Moody.fails = False
    first = critic.fit(RECORDS[:4])
    Moody.fails = True
    failed = critic.fit(RECORDS[4:9], critic.fit(RECORDS[4:4], first))
    verdict = failed.judge([QUERY], [NONE])[0]
    assert verdict.source == "counts" and "moody raised ZeroDivisionError: no positives" in verdict.rationale
    Moody.fails = False
    again = critic.fit(RECORDS[9:], failed).judge([QUERY], [NONE])[0]
    assert again.confidence == BaseRateCritic().fit(RECORDS).rate


def test_a_part_whose_fit_gives_no_critic_is_replaced() -> None:
    class Forgets(BaseRateCritic):
        def fit(self, records: Sequence[Record], previous: Any = None) -> Any:
            return None

    critic: Any = cascade(Forgets(), ConstantCritic(0.3))
    verdict = critic.fit(RECORDS).judge([QUERY], [NONE])[0]
    assert verdict.confidence == 0.3 and "returned None from `fit`" in verdict.rationale


def test_a_spec_joins_critics_and_keeps_each_ones_options() -> None:
    critic = make_critic(
        "neighbors?k=3 | counts?prior_weight=2&until=30 | rules?kind=web&risky=0.1&route=risk"
    )
    assert isinstance(critic, LearningCascade)
    assert (critic.name, critic.k) == ("neighbors | counts | rules", 3)
    click = replace(QUERY, action="CLICK <button> Pay", env_id="page")
    verdicts = critic.judge([at(0), at(30), replace(click, revision=30)], [NONE] * 3)
    assert [verdict.source for verdict in verdicts] == ["counts", "neighbors", "rules"]
    assert verdicts[2].confidence == 0.1


def test_a_spec_of_parts_that_learn_nothing_learns_nothing() -> None:
    assert not isinstance(make_critic("rules | constant:0.5"), LearningCritic)


EXTRA = [Rule("mine/jump", "any", lambda action: action.text == "jump", 0.3)]


def test_a_spec_can_import_further_rules() -> None:
    critic = make_critic(f"rules:bash?extra={__name__}:EXTRA")
    assert critic.judge([replace(QUERY, action="jump")], [NONE])[0].confidence == 0.3
    assert critic.judge([RISKY], [NONE])[0].confidence == 0.05


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("counts?until=3 | rules", "until to its first critic"),
        ("counts | rules?until=soon", "until is 'soon'"),
        ("counts | rules?until=-1", "until is -1"),
        ("counts | rules?until=true", "until is True"),
        ("counts | rules?route=mood", "route is 'mood'"),
        ("counts | rules?foo=1", "has no option 'foo': it takes kind, risky, other, extra, built_in, until"),
        ("counts | nonsense", "no critic 'nonsense'"),
        ("counts | ", "has no name"),
        ("counts | <object>", "pass critic=... again"),
        ("rules?extra=os:nothing", "cannot be imported"),
        ("rules?extra=os:sep", "Rule values"),
        ("rules?kind=ios", "'ios'"),
    ],
)
def test_a_spec_that_cannot_work_says_why(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        make_critic(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: cascade(CountsCritic()), "no alternative"),
        (lambda: cascade(CountsCritic(), "counts"), "'counts', which is no critic"),  # type: ignore[arg-type]
        (lambda: cascade(CountsCritic, CountsCritic()), "which is no critic"),  # type: ignore[arg-type]
        (lambda: CascadeCritic(CountsCritic(), [Alternative(RulesCritic())]), "build it by `cascade`"),
    ],
)
def test_parts_that_make_no_cascade_are_refused(build: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build()
