from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from ceb_gym import ConfidenceWrapper, rollout
from ceb_gym.agents.basic import PlannerAgent
from ceb_gym.errors import ConfigurationError
from ceb_gym.evaluation.rollout import RolloutResult
from ceb_gym.evaluation.twin import TWIN, precedent_critic, without_precedents


def run(critic: str, **arguments: Any) -> RolloutResult:
    env = ConfidenceWrapper(
        gym.make("FrozenLake-v1", is_slippery=False),
        critic=critic,
        labeler="success?reward_above=0",
        **arguments,
    )
    twin = without_precedents("precedent?precedents=true")
    assert twin is not None
    try:
        return rollout(env, PlannerAgent(0.7, seed=2), 60, seed=1, estimators={TWIN: twin})
    finally:
        env.close()


def test_the_twin_gives_what_the_critic_gives_without_precedents() -> None:
    result = run("precedent?precedents=false")
    assert len({row.confidence["critic"] for row in result.steps}) > 50
    assert all(row.confidence["critic"] == row.confidence[TWIN] for row in result.steps)


def test_the_twin_differs_where_precedents_are_used() -> None:
    result = run("precedent?precedents=true")
    assert any(row.confidence["critic"] != row.confidence[TWIN] for row in result.steps)


def test_the_twin_keeps_the_critics_other_options() -> None:
    assert without_precedents("precedent?k=3&without=loops") is not None
    with pytest.raises(ConfigurationError, match="no group of features"):
        without_precedents("precedent?without=nonsense")


@pytest.mark.parametrize(
    "critic",
    [
        "counts",
        "neighbors?k=3",
        "precedent | counts",
        "rules | precedent",
        "precedent?precedents=false",
        "precedent?precedents=true&without=position,action,loops,outcomes",
        "my_critics:Mine",
    ],
)
def test_other_critics_and_those_that_are_their_own_twin_have_none(critic: str) -> None:
    assert without_precedents(critic) is None


def test_only_the_precedent_critic_itself_is_built_for_weights() -> None:
    assert precedent_critic("neighbors") is None and precedent_critic("precedent | counts") is None
    built = precedent_critic("precedent?k=3")
    assert built is not None and built.k == 3
