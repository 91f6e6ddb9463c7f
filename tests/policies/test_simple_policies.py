from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest

from ceb_gym.build.parts import make_policy
from ceb_gym.errors import ConfigurationError
from ceb_gym.policies.simple import (
    DeferBelow,
    DeferLowest,
    NeverDefer,
    PolicyChain,
    ReviewBudget,
)
from ceb_gym.protocols import Policy
from ceb_gym.types import Decision, Query, Verdict

QUERY = Query("env", "scope", 0, "episode", "task", "state", "act", (), False, 0)


def kind(policy: Policy, confidence: float | None) -> str:
    return policy.decide(QUERY, Verdict(confidence)).kind


def run(policy: Policy, confidences: list[float]) -> list[str]:
    """What is decided when each decision is carried out."""
    kinds = []
    for confidence in confidences:
        decision = policy.decide(QUERY, Verdict(confidence))
        policy.observe(Verdict(confidence), decision)
        kinds.append(decision.kind)
    return kinds


def share_deferred(kinds: list[str]) -> float:
    return kinds.count("defer") / len(kinds)


EVERY_POLICY: list[Any] = [
    NeverDefer(),
    DeferBelow(1.0),
    DeferLowest(1.0, warmup=1),
    ReviewBudget(5, below=1.0),
    PolicyChain([DeferBelow(1.0), ReviewBudget(3)]),
]


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=lambda policy: type(policy).__name__)
def test_unscored_actions_are_executed(policy: Policy) -> None:
    policy.begin_episode()
    run(policy, [0.1, 0.2])
    assert kind(policy, None) == "execute"


def test_never_executes_everything_and_blocks_nothing() -> None:
    assert kind(NeverDefer(), 0.0) == "execute" and not NeverDefer().blocking


@pytest.mark.parametrize(
    ("confidence", "decision"), [(0.3, "execute"), (0.29999, "defer"), (0.0, "defer"), (1.0, "execute")]
)
def test_a_confidence_equal_to_the_threshold_is_executed(confidence: float, decision: str) -> None:
    assert kind(DeferBelow(0.3), confidence) == decision


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_constant_critic_is_never_deferred(share: float) -> None:
    assert share_deferred(run(DeferLowest(share, warmup=5), [0.4] * 300)) == 0.0


def test_share_one_defers_even_a_constant_critic_after_the_warmup() -> None:
    assert run(DeferLowest(1.0, warmup=5), [0.4] * 8) == ["execute"] * 5 + ["defer"] * 3


def test_share_zero_defers_nothing() -> None:
    falling = [1 - index / 500 for index in range(500)]
    assert share_deferred(run(DeferLowest(0.0, warmup=1), falling)) == 0.0


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("window", [50, 1000])
def test_the_long_run_share_of_continuous_scores_is_close_to_b(share: float, window: int) -> None:
    rng = random.Random(3)
    kinds = run(DeferLowest(share, window=window), [rng.random() for _ in range(6_000)])
    assert share_deferred(kinds[1_000:]) == pytest.approx(share, abs=0.03)


def test_the_quantile_follows_scores_that_drift() -> None:
    policy = DeferLowest(0.5, warmup=10, window=50)
    run(policy, [0.9 + index / 10_000 for index in range(100)])
    run(policy, [0.1 + index / 10_000 for index in range(100)])
    assert kind(policy, 0.5) == "execute"


def test_nothing_is_deferred_during_the_warmup() -> None:
    policy = DeferLowest(0.9, warmup=20)
    assert "defer" not in run(policy, [1 - index / 20 for index in range(20)])
    assert kind(policy, 0.0) == "defer"


def test_unscored_actions_do_not_move_the_quantile() -> None:
    policy = DeferLowest(0.9, warmup=3)
    for _ in range(10):
        policy.observe(Verdict(None), Decision("execute"))
    assert kind(policy, 0.0) == "execute"


def test_the_quantile_runs_over_episodes() -> None:
    policy = DeferLowest(0.5, warmup=3)
    run(policy, [0.4, 0.5, 0.6, 0.7])
    policy.begin_episode()
    assert kind(policy, 0.1) == "defer"


@pytest.mark.parametrize(
    "text", ["defer_lowest:0.5?warmup=5", "review_budget:2?below=0.9", "defer_below:0.5"]
)
def test_deciding_changes_nothing(text: str) -> None:
    asked, unasked = make_policy(text).policy, make_policy(text).policy
    for _ in range(50):
        asked.decide(QUERY, Verdict(0.01))
    scores = [0.5, 0.2, 0.8, 0.1, 0.9, 0.3, 0.05, 0.7]
    assert run(asked, scores) == run(unasked, scores)


def test_a_budget_defers_at_most_m_an_episode_and_is_refilled() -> None:
    policy = ReviewBudget(2, below=0.5)
    policy.begin_episode()
    assert run(policy, [0.1, 0.9, 0.2, 0.3, 0.0]) == ["defer", "execute", "defer", "execute", "execute"]
    policy.begin_episode()
    assert run(policy, [0.1]) == ["defer"]


def test_a_deferral_that_was_not_carried_out_spends_nothing() -> None:
    policy = ReviewBudget(1, below=0.5)
    policy.begin_episode()
    policy.observe(Verdict(0.1), Decision("execute", "explored"))
    assert kind(policy, 0.1) == "defer"


def test_a_budget_of_zero_defers_nothing() -> None:
    assert run(ReviewBudget(0, below=1.0), [0.0, 0.1]) == ["execute", "execute"]


def test_the_first_policy_of_a_chain_that_objects_decides() -> None:
    decision = PolicyChain([DeferBelow(0.2), DeferBelow(0.5)]).decide(QUERY, Verdict(0.3))
    assert decision.kind == "defer" and "below 0.5" in decision.reason


def test_a_chain_spends_a_budget_only_for_what_the_budget_deferred() -> None:
    policy = make_policy("defer_below:0.2 | review_budget:1?below=0.5").policy
    policy.begin_episode()
    assert run(policy, [0.1, 0.1, 0.4, 0.4]) == ["defer", "defer", "defer", "execute"]


def test_every_policy_of_a_chain_sees_every_confidence() -> None:
    chain = PolicyChain([DeferBelow(0.2), DeferLowest(0.5, warmup=4)])
    run(chain, [0.1, 0.1, 0.1, 0.6])
    assert kind(chain, 0.3) == "execute"
    run(chain, [0.9, 0.9, 0.9, 0.9, 0.9])
    assert kind(chain, 0.3) == "defer"


def test_a_chain_blocks_when_one_of_it_does() -> None:
    assert not PolicyChain([NeverDefer(), NeverDefer()]).blocking
    assert PolicyChain([NeverDefer(), DeferBelow(0.1)]).blocking


@pytest.mark.parametrize(
    ("text", "explore", "enforce", "blocking"),
    [
        ("never", 0.0, True, False),
        ("defer_below:0.3?explore=0.05", 0.05, True, True),
        ("defer_below:0.3?enforce=false", 0.0, False, False),
        ("defer_lowest:0.1?warmup=7&explore=0.2&enforce=true", 0.2, True, True),
        ("defer_below:0.3?explore=0.1 | review_budget:2?below=0.4", 0.1, True, True),
        ("defer_below:0.3?explore=0.1 | review_budget:2?explore=0.1", 0.1, True, True),
    ],
)
def test_switches_are_read_from_the_string(text: str, explore: float, enforce: bool, blocking: bool) -> None:
    governor = make_policy(text)
    assert (governor.explore, governor.enforce, governor.blocking) == (explore, enforce, blocking)


def test_a_built_governor_and_a_policy_object_are_taken_as_they_are() -> None:
    governor = make_policy("defer_below:0.3")
    assert make_policy(governor) is governor
    policy = DeferBelow(0.4)
    assert make_policy(policy).policy is policy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("defer_below", "needs threshold"),
        ("defer_below:1.5", "threshold of defer_below is 1.5"),
        ("defer_below:true", "is True"),
        ("defer_below:nan", "is nan"),
        ("defer_lowest:-0.1", "-0.1"),
        ("defer_lowest:0.1?warmup=0", "warmup is 0"),
        ("defer_lowest:0.1?warmup=30&window=20", "window 20"),
        ("review_budget:1.5", "budget is 1.5"),
        ("review_budget:-1", "budget is -1"),
        ("review_budget:1?above=1", "it takes budget, below"),
        ("defer_below:0.3?explore=2", "explore is 2"),
        ("defer_below:0.3?enforce=maybe", "enforce is 'maybe'"),
        ("defer_below:0.3?explore=0.1 | never?explore=0.2", "gives explore twice"),
        ("defer_below:0.3 | ", "has no name"),
        ("always", "choose one of defer_below, defer_lowest, never, review_budget"),
        (NeverDefer, "is a class"),
        (42, "lacks `blocking`, `begin_episode`, `decide`, `observe`"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_with_the_reason(text: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_policy(copy.copy(text))


def test_nothing_is_deferred_while_the_bank_is_young() -> None:
    governor = make_policy("defer_below:0.5?min_revision=3")
    kinds = [governor.decide(replace(QUERY, revision=r), Verdict(0.1)).kind for r in (0, 2, 3, 9)]
    assert kinds == ["execute", "execute", "defer", "defer"]


def test_a_misspelt_policy_offers_the_valid_names() -> None:
    with pytest.raises(ConfigurationError, match="choose one of defer_below, defer_lowest, never"):
        make_policy("defer_bellow:0.3")


def test_an_unknown_switch_names_the_valid_ones() -> None:
    with pytest.raises(ConfigurationError, match="it takes threshold, explore, enforce, min_revision"):
        make_policy("defer_below:0.3?exlore=0.1")
