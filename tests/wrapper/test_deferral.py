from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import pytest
from wrapper_parts import ScriptedTextEnv, TableCritic

from ceb_gym import ConfidenceWrapper, Decision, Step
from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Bank

SIX = (0.0,) * 6


def stored_steps(env: ConfidenceWrapper[Any, Any]) -> tuple[Step, ...]:
    """The steps of the wrapper's last episode as the bank keeps them."""
    return env.bank.episode(env.episode_id).steps


def records(bank: Bank) -> list[str]:
    return [record.action for record in bank.records("ScriptedTextEnv")]


def test_deferred_action_reaches_environment_zero_times(wrap: Any) -> None:
    inner = ScriptedTextEnv()
    env = wrap(inner, policy="defer_below:0.3", deferred_reward=-0.25)
    env.reset()
    env.step("good")
    observation, reward, terminated, truncated, info = env.step("bad")
    assert inner.arrived == ["good"]
    assert (observation, reward, terminated, truncated) == ("screen 1", -0.25, False, False)
    block = info["ceb"]
    assert (block["decision"], block["executed"], block["confidence"], block["deferrals"]) == (
        "defer",
        False,
        0.1,
        1,
    )
    assert "0.100 is below 0.3" in block["reason"]


def test_deferred_steps_are_kept_marked_and_never_banked(wrap: Any) -> None:
    env = wrap(policy="defer_below:0.3")
    env.reset()
    for action in ("a", "bad", "b", "c"):
        env.step(action)
    assert [(step.action, step.executed, step.reward, step.outcome) for step in stored_steps(env)] == [
        ("a", True, 0.0, "screen 1"),
        ("bad", False, None, None),
        ("b", True, 0.5, "screen 2"),
        ("c", True, 1.0, "screen 3"),
    ]
    assert records(env.bank) == ["a", "b", "c"]


def test_repeated_observation_is_a_copy_that_the_agent_may_change(critic: TableCritic) -> None:
    import numpy as np

    class ArrayEnv(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(0.0, 9.0, (2,))
        action_space = gym.spaces.Text(9)

        def reset(self, **arguments: Any) -> Any:
            return np.ones(2, np.float32), {}

    critic.table = {"bad": 0.1, "worse": 0.1}
    env = ConfidenceWrapper(ArrayEnv(), critic=critic, labeler="success", policy="defer_below:0.3")
    observation, _ = env.reset()
    observation[:] = 7
    first = env.step("bad")[0]
    first[:] = 8
    assert env.step("worse")[0].tolist() == [1.0, 1.0]
    env.close()


def test_second_deferral_of_the_same_action_truncates_without_a_reviewer(wrap: Any) -> None:
    inner = ScriptedTextEnv()
    env = wrap(inner, policy="defer_below:0.3")
    env.reset()
    assert not env.step("bad")[3]
    _, _, terminated, truncated, info = env.step("bad")
    assert (terminated, truncated, info["ceb"]["decision"]) == (False, True, "terminate")
    assert inner.arrived == []


def test_the_same_action_may_be_deferred_again_in_another_state(wrap: Any) -> None:
    env = wrap(ScriptedTextEnv(SIX), policy="defer_below:0.3")
    env.reset()
    assert not env.step("bad")[3]
    env.step("good")
    assert not env.step("bad")[3]


def test_agent_that_is_deferred_for_ever_is_truncated_at_the_limit(wrap: Any) -> None:
    env = wrap(policy="defer_below:1", max_deferrals=5)
    env.reset()
    ends = [env.step(f"try {number}")[3] for number in range(5)]
    assert ends == [False, False, False, False, True]
    assert len(stored_steps(env)) == 5 and records(env.bank) == []


def test_review_budget_defers_at_most_m_actions_an_episode(wrap: Any) -> None:
    inner = ScriptedTextEnv(SIX)
    env = wrap(inner, policy="review_budget:2?below=0.5")
    for _ in range(2):
        env.reset()
        decisions = [env.step(action)[4]["ceb"]["decision"] for action in ("bad", "worse", "bad ", "bad")]
        assert decisions == ["defer", "defer", "execute", "execute"]


def test_budget_and_quantile_do_not_move_by_assessing(wrap: Any) -> None:
    env = wrap(policy="review_budget:1?below=0.5")
    env.reset()
    for _ in range(5):
        assert env.assess("bad").decision.kind == "defer"
    assert env.step("bad")[4]["ceb"]["decision"] == "defer"
    assert env.assess("worse").decision.kind == "execute"


def test_policies_chain_and_the_first_that_objects_decides(wrap: Any) -> None:
    env = wrap(policy="defer_below:0.07 | review_budget:1?below=0.5")
    env.reset()
    reasons = [env.step(action)[4]["ceb"]["reason"] for action in ("worse", "bad", "bad")]
    assert "below 0.07" in reasons[0] and "deferral 1 of 1" in reasons[1] and reasons[2] == ""


def test_exploration_executes_some_deferrals_and_stores_the_propensity(wrap: Any) -> None:
    env = wrap(ScriptedTextEnv((0.0,) * 400), policy="defer_below:0.3?explore=0.25", max_deferrals=1000)
    env.reset(seed=7)
    executed = [env.step(f"bad{number}")[4]["ceb"]["executed"] for number in range(0)]
    critic_table = env._config.critic.table
    for number in range(400):
        critic_table[f"bad {number}"] = 0.1
        executed.append(env.step(f"bad {number}")[4]["ceb"]["executed"])
    assert 60 < sum(executed) < 140  # 100 expected, standard deviation 8.7
    env.reset()
    steps = env.bank.episode(env.bank.pending(held=True)[0].episode_id).steps
    assert {step.propensity for step in steps if step.executed} == {0.25}
    assert {step.propensity for step in steps if not step.executed} == {0.75}


def test_exploration_is_repeatable_by_seed(critic: TableCritic) -> None:
    runs = []
    for _ in range(2):
        env = ConfidenceWrapper(
            ScriptedTextEnv((0.0,) * 50),
            critic=critic,
            labeler="none",
            policy="defer_below:0.95?explore=0.5",
            max_deferrals=100,
        )
        env.reset(seed=11)
        runs.append([env.step(f"a{number}")[4]["ceb"]["executed"] for number in range(40)])
        env.close()
    assert runs[0] == runs[1] and len(set(runs[0])) == 2


def test_unenforced_decisions_are_recorded_and_not_applied(wrap: Any) -> None:
    inner = ScriptedTextEnv()
    env = wrap(inner, policy="defer_below:0.3?enforce=false")
    env.reset()
    block = env.step("bad")[4]["ceb"]
    assert (block["decision"], block["executed"]) == ("defer", True)
    assert "not enforced" in block["reason"] and inner.arrived == ["bad"]


def test_reviewer_is_asked_at_the_second_deferral_and_can_execute(wrap: Any) -> None:
    inner = ScriptedTextEnv()
    asked: list[str] = []

    def reviewer(query: Any, verdict: Any, precedents: Any) -> bool:
        asked.append(query.action)
        return True

    env = wrap(inner, policy="defer_below:0.3", reviewer=reviewer)
    env.reset()
    assert not env.step("bad")[4]["ceb"]["executed"]
    assert asked == []
    assert env.step("bad")[4]["ceb"]["executed"]
    assert asked == ["bad"] and inner.arrived == ["bad"]


def test_replacement_is_judged_before_it_runs_and_keeps_its_own_confidence(
    wrap: Any, critic: TableCritic
) -> None:
    critic.table["safe"] = 0.7
    inner = ScriptedTextEnv()
    env = wrap(
        inner,
        policy="defer_below:0.3",
        reviewer=lambda *_: Decision("modify", "use the safe one", "safe"),
        review_on="every",
    )
    env.reset()
    block = env.step("bad")[4]["ceb"]
    assert (block["decision"], block["confidence"], block["executed"]) == ("modify", 0.7, True)
    assert inner.arrived == ["safe"]
    for action in ("x", "y"):
        env.step(action)
    steps = stored_steps(env)
    assert [(s.index, s.proposed, s.action, s.executed, s.confidence) for s in steps[:2]] == [
        (0, "bad", "bad", False, 0.1),
        (1, "bad", "safe", True, 0.7),
    ]
    assert records(env.bank) == ["safe", "x", "y"]


def test_reviewer_can_end_the_episode(wrap: Any) -> None:
    inner = ScriptedTextEnv()
    env = wrap(
        inner,
        policy="defer_below:0.3",
        reviewer=lambda *_: Decision("terminate", "too risky"),
        review_on="every",
    )
    env.reset()
    _, _, terminated, truncated, info = env.step("bad")
    assert (terminated, truncated, info["ceb"]["reason"], inner.arrived) == (False, True, "too risky", [])


def test_reviewer_that_raises_defers_with_the_reason(wrap: Any) -> None:
    def broken(*_: Any) -> bool:
        raise KeyError("no such person")

    env = wrap(policy="defer_below:0.3", reviewer=broken, review_on="every")
    env.reset()
    block = env.step("bad")[4]["ceb"]
    assert block["decision"] == "defer" and "the reviewer raised KeyError" in block["reason"]


def test_reviewer_that_hangs_defers_with_the_reason(wrap: Any) -> None:
    never = threading.Event()
    env = wrap(
        policy="defer_below:0.3", reviewer=lambda *_: never.wait(), review_on="every", review_timeout_s=0.05
    )
    env.reset()
    block = env.step("bad")[4]["ceb"]
    never.set()
    assert block["decision"] == "defer" and "no answer in 0.05 s" in block["reason"]


def test_reviewer_that_only_ever_defers_ends_at_the_limit(wrap: Any) -> None:
    env = wrap(policy="defer_below:0.3", reviewer=lambda *_: False, max_deferrals=4)
    env.reset()
    assert [env.step("bad")[3] for _ in range(4)] == [False, False, False, True]


def test_append_reason_tells_the_agent_why(wrap: Any) -> None:
    env = wrap(policy="defer_below:0.3", on_defer="append_reason")
    env.reset()
    observation = env.step("bad")[0]
    assert observation == "screen 0\n[deferred: confidence 0.100 is below 0.3]"
    assert env.observation_space.contains(observation)


def test_append_reason_is_refused_where_observations_are_no_text(wrap: Any) -> None:
    env = wrap(
        gym.make("CartPole-v1"),
        labeler="return:0.9",
        policy="defer_below:0.3",
        on_defer="append_reason",
        deferred_reward=0.0,
    )
    with pytest.raises(ConfigurationError, match="needs a text observation space"):
        env.reset()


def test_a_callable_makes_the_observation_of_a_deferral(wrap: Any) -> None:
    env = wrap(policy="defer_below:0.3", on_defer=lambda observation, reason: f"{observation}!")
    env.reset()
    assert env.step("bad")[0] == "screen 0!"


def test_deferring_for_nothing_is_refused_once_rewards_are_negative(wrap: Any) -> None:
    env = wrap(ScriptedTextEnv((-1.0, -1.0, 0.0)), policy="defer_below:0.3")
    env.reset()
    env.step("good")
    with pytest.raises(ConfigurationError, match="Pass deferred_reward"):
        env.step("bad")
    assert not env.step("good")[3]  # the episode goes on


def test_deferral_after_negative_rewards_is_fine_with_a_deferred_reward(wrap: Any) -> None:
    env = wrap(ScriptedTextEnv((-1.0, -1.0, 0.0)), policy="defer_below:0.3", deferred_reward=-1.0)
    env.reset()
    env.step("good")
    assert env.step("bad")[1] == -1.0


def test_lowest_share_of_a_running_quantile_is_deferred(critic: TableCritic) -> None:
    critic.table = {f"a{number}": ((number * 37) % 101) / 101 for number in range(400)}
    env = ConfidenceWrapper(
        ScriptedTextEnv((0.0,) * 500),
        critic=critic,
        labeler="none",
        policy="defer_lowest:0.25",
        max_deferrals=1000,
    )
    env.reset()
    deferred = sum(env.step(f"a{number}")[4]["ceb"]["decision"] == "defer" for number in range(400))
    assert 80 <= deferred <= 110
    env.close()


def test_deferral_repeats_the_environments_own_info(wrap: Any) -> None:
    env = wrap(policy="defer_below:0.3")
    _, info = env.reset()
    assert info["task"] == "reach the end"
    assert env.step("bad")[4]["task"] == "reach the end"
