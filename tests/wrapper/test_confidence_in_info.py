from __future__ import annotations

import copy
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.wrappers import TimeLimit
from wrapper_parts import ScriptedTextEnv, TableCritic

from ceb_gym import ConfidenceWrapper
from ceb_gym.errors import ConfigurationError, UsageError

KEYS = {
    "confidence": float,
    "scored": bool,
    "executed": bool,
    "repeated": bool,
    "decision": str,
    "reason": str,
    "source": str,
    "productive_precedents": int,
    "unproductive_precedents": int,
    "deferrals": int,
    "bank_revision": int,
    "step_index": int,
}


def types_of(block: dict[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in block.items()}


def test_info_has_the_same_keys_and_types_at_reset_and_at_every_kind_of_step(wrap: Any) -> None:
    env = wrap(policy="defer_below:0.3")
    _, info = env.reset(seed=1)
    assert types_of(info["ceb"]) == KEYS
    for action in ("good", "bad", "unknown"):
        assert types_of(env.step(action)[4]["ceb"]) == KEYS


def test_reset_is_unscored(wrap: Any) -> None:
    block = wrap().reset()[1]["ceb"]
    assert (block["confidence"], block["scored"], block["executed"], block["decision"]) == (
        -1.0,
        False,
        False,
        "none",
    )


def test_unscored_action_is_executed_and_marked(wrap: Any) -> None:
    env = wrap(policy="defer_below:0.3")
    env.reset()
    block = env.step("unknown")[4]["ceb"]
    assert (block["confidence"], block["scored"], block["executed"]) == (-1.0, False, True)


def test_score_exists_before_the_environment_is_touched(wrap: Any, critic: TableCritic) -> None:
    inner = ScriptedTextEnv()
    arrived_at_judgement: list[int] = []
    critic.on_judge = lambda: arrived_at_judgement.append(len(inner.arrived))
    env = wrap(inner)
    env.reset()
    for step in range(3):
        env.step(f"go {step}")
    assert arrived_at_judgement == [0, 1, 2]


def test_observations_rewards_and_ends_of_executed_steps_are_untouched(wrap: Any) -> None:
    plain, wrapped = ScriptedTextEnv(), wrap(ScriptedTextEnv())
    assert plain.reset(seed=3)[0] == wrapped.reset(seed=3)[0]
    for action in ("a", "b", "c"):
        assert plain.step(action)[:4] == wrapped.step(action)[:4]


def test_spaces_are_those_of_the_environment(wrap: Any) -> None:
    env = wrap(gym.make("CartPole-v1"), labeler="return:0.9")
    assert env.observation_space == env.unwrapped.observation_space
    assert env.action_space == env.unwrapped.action_space


def test_the_info_dict_of_the_environment_is_left_alone(wrap: Any) -> None:
    class KeepsItsInfo(ScriptedTextEnv):
        def reset(self, **arguments: Any) -> Any:
            self.info = {"task": "x"}
            return "start", self.info

    inner = KeepsItsInfo()
    env = wrap(inner)
    env.reset()
    assert inner.info == {"task": "x"}


def test_critic_sees_task_state_action_history_and_no_reward_or_label(wrap: Any, critic: TableCritic) -> None:
    env = wrap(ScriptedTextEnv(rewards=(0.123456, 0.654321, 1.0)))
    env.reset()
    env.step("first")
    env.step("second")
    query, precedents = critic.seen[-1]
    assert (query.task, query.state, query.action, query.step_index) == (
        "reach the end",
        "screen 1",
        "second",
        1,
    )
    assert [(item.action, item.outcome, item.confidence) for item in query.history] == [
        ("first", "screen 1", 0.9)
    ]
    shown = repr(query) + repr(precedents)
    assert "0.123456" not in shown and "label" not in repr(query) and "reward" not in repr(query)


def test_repetition_flag_is_set_for_a_prefix_of_one_of_the_last_three_actions(wrap: Any) -> None:
    env = wrap(ScriptedTextEnv(rewards=(0.0,) * 6))
    env.reset()
    flags = [
        env.step(action)[4]["ceb"]["repeated"] for action in ("ls -la", "pwd", "id", "ls", "w", "ls -la")
    ]
    assert flags == [False, False, False, True, False, False]


def test_step_before_reset_and_after_the_end_says_what_to_do(wrap: Any) -> None:
    env = wrap()
    with pytest.raises(UsageError, match="before `reset`"):
        env.step("a")
    env.reset()
    for _ in range(3):
        env.step("a")
    with pytest.raises(UsageError, match="after the episode ended: call `reset`"):
        env.step("a")
    with pytest.raises(UsageError, match="`assess` was called after"):
        env.assess("a")


def test_assess_is_reused_by_the_following_step_of_the_same_action(wrap: Any, critic: TableCritic) -> None:
    env = wrap()
    env.reset()
    assert env.confidence("bad") == 0.1
    assert env.confidence("unknown") is None
    env.step("bad")
    assert [query.action for query, _ in critic.seen] == ["bad", "unknown"]
    env.step("bad")
    assert [query.action for query, _ in critic.seen] == ["bad", "unknown", "bad"]


def test_assess_many_judges_in_one_batch(wrap: Any, critic: TableCritic) -> None:
    batches: list[int] = []
    critic.on_judge = lambda: batches.append(1)
    env = wrap()
    env.reset()
    confidences = [found.verdict.confidence for found in env.assess_many(["bad", "x", "worse"])]
    assert confidences == [0.1, 0.9, 0.05]
    assert len(batches) == 1


def test_an_action_array_changed_after_assess_is_judged_anew(wrap: Any, critic: TableCritic) -> None:
    env = wrap(gym.make("Pendulum-v1"), labeler="return:0.9")
    env.reset(seed=0)
    action = np.array([0.5], dtype=np.float32)
    env.assess(action)
    action[0] = -0.5
    env.step(action)
    assert len(critic.seen) == 2


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(6),
        spaces.Box(-1.0, 1.0, (3,)),
        spaces.Box(-np.inf, np.inf, (2, 2)),
        spaces.Box(0, 255, (32, 24, 3), np.uint8),
        spaces.Text(12),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0.0, 1.0, (2,))}),
        spaces.Tuple((spaces.Discrete(2), spaces.Text(5))),
        spaces.Sequence(spaces.Discrete(3)),
        spaces.Graph(spaces.Box(0.0, 1.0, (2,)), spaces.Discrete(2)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_any_space_can_be_observed_and_acted_in(space: spaces.Space[Any]) -> None:
    class Sampling(gym.Env[Any, Any]):
        observation_space = copy.deepcopy(space)
        action_space = copy.deepcopy(space)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 1.0, False, True, {}

    space.seed(5)
    env = ConfidenceWrapper(Sampling(), critic="neighbors", labeler="success?reward_above=0")
    plain = Sampling()
    for seed in range(3):
        assert data_equivalence(env.reset(seed=seed)[0], plain.reset(seed=seed)[0])
        block = env.step(space.sample())[4]["ceb"]
        assert block["scored"] and 0 <= block["confidence"] <= 1
    env.close()


@pytest.mark.parametrize("outside", [False, True])
def test_time_limit_inside_or_outside_ends_the_episode_in_the_bank(
    outside: bool, critic: TableCritic
) -> None:
    inner = ScriptedTextEnv(rewards=(0.0, 0.5, 0.5, 0.5))
    if outside:
        wrapper = ConfidenceWrapper(inner, critic=critic, labeler="reward_level")
        env: gym.Env[Any, Any] = TimeLimit(wrapper, 2)
    else:
        env = wrapper = ConfidenceWrapper(TimeLimit(inner, 2), critic=critic, labeler="reward_level")
    env.reset()
    env.step("a")
    assert env.step("b")[3]
    env.reset()
    expected = 0 if outside else 2  # an end that only an outer wrapper sees is an early reset: held
    assert len(wrapper.bank.records("ScriptedTextEnv")) == expected
    held = wrapper.bank.pending(held=True)
    assert len(held) == (1 if outside else 0)
    env.close()


@pytest.mark.parametrize("learning", [{"learn": "off"}, {"labeler": "return:0.9"}], ids=["off", "inline"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_check_env_finds_nothing_that_the_wrapper_adds(env_id: str, learning: dict[str, str]) -> None:
    def complaints(env: gym.Env[Any, Any]) -> set[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(env, skip_render_check=True)
        told = {str(warning.message) for warning in caught}
        return {text for text in told if "different from the unwrapped version" not in text}

    env = ConfidenceWrapper(gym.make(env_id), critic="neighbors", **learning)
    assert complaints(env) == complaints(gym.make(env_id))
    assert env.episode_id, "the check has to play through the wrapper"
    env.close()


def test_labeler_is_asked_for_and_never_guessed() -> None:
    with pytest.raises(ConfigurationError, match="never guessed"):
        ConfidenceWrapper(ScriptedTextEnv())
