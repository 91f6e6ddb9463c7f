from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers import TimeLimit

from ceb_gym import ConfidenceWrapper, rollout
from ceb_gym.agents.basic import PlannerAgent, RandomAgent
from ceb_gym.critics.simple import BaseRateCritic, CountsCritic
from ceb_gym.errors import ConfigurationError
from ceb_gym.evaluation.evaluate import evaluate_rollout


def frozen_lake(**arguments: Any) -> ConfidenceWrapper[Any, Any]:
    env = gym.make("FrozenLake-v1", is_slippery=False)
    arguments = {"critic": "neighbors", "labeler": "success?reward_above=0", **arguments}
    return ConfidenceWrapper(env, **arguments)


def test_rows_hold_what_the_wrapper_put_into_info() -> None:
    env = frozen_lake()
    seen: list[dict[str, Any]] = []
    inner_step = env.step

    def noting(action: Any) -> Any:
        result = inner_step(action)
        seen.append(result[4]["ceb"])
        return result

    env.step = noting  # type: ignore[method-assign]
    result = rollout(env, RandomAgent(seed=1), 5, seed=1)
    assert [row.confidence["critic"] for row in result.steps] == [block["confidence"] for block in seen]
    env.close()


def test_estimators_judge_at_the_same_revision_and_never_see_the_running_episode() -> None:
    env = frozen_lake()
    result = rollout(env, RandomAgent(seed=1), 6, seed=1, estimators={"base_rate": BaseRateCritic()})
    by_episode: dict[int, set[float | None]] = {}
    for row in result.steps:
        by_episode.setdefault(row.episode, set()).add(row.confidence["base_rate"])
    assert by_episode[0] == {0.5}
    assert all(len(values) == 1 for values in by_episode.values())
    env.close()


def test_a_wrappers_own_counts_critic_equals_the_estimator() -> None:
    env = frozen_lake(critic="counts")
    result = rollout(env, PlannerAgent(0.6, seed=2), 30, seed=1, estimators={"counts": CountsCritic()})
    assert all(row.confidence["critic"] == row.confidence["counts"] for row in result.steps)
    env.close()


def test_background_learning_labels_every_row_in_the_end() -> None:
    env = frozen_lake(learn="background")
    result = rollout(env, PlannerAgent(0.6, seed=2), 10, seed=1)
    assert result.labels_from == "bank" and all(row.label is not None for row in result.steps)
    env.close()


def test_a_function_is_an_agent() -> None:
    env = frozen_lake()
    result = rollout(env, lambda observation, info: 2, 1, seed=1)
    assert {row.action for row in result.steps} == {"action_02"}
    env.close()


def test_the_wrapper_is_found_under_others() -> None:
    env = TimeLimit(frozen_lake(), 3)
    result = rollout(env, lambda observation, info: 0, 2, seed=1)
    assert [episode.n_executed for episode in result.episodes] == [3, 3]
    env.close()


def test_an_environment_without_the_wrapper_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs an environment with a ConfidenceWrapper"):
        rollout(gym.make("FrozenLake-v1"), RandomAgent(), 1)


def test_ctrl_c_keeps_the_finished_episodes() -> None:
    env = frozen_lake()
    calls = 0

    def interrupted(observation: Any, info: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 40:
            raise KeyboardInterrupt
        return calls % 4

    result = rollout(env, interrupted, 100, seed=1)
    assert result.interrupted and len(result.episodes) >= 1
    assert {row.episode for row in result.steps} == set(range(len(result.episodes)))
    assert all(row.label is not None for row in result.steps)
    env.close()


def test_evaluation_without_any_label_has_no_numbers() -> None:
    env = frozen_lake(labeler="none")
    result = rollout(env, RandomAgent(seed=1), 2, seed=1)
    evaluation = evaluate_rollout(result, labeler="none", label_rule=None)
    assert evaluation.summaries["critic"]["all"].n_steps == 0
    assert evaluation.n_unlabelled == len(result.steps)
    env.close()
