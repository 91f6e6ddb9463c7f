from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from wrapper_parts import ScriptedTextEnv, TableCritic

from ceb_gym import ConfidenceWrapper
from ceb_gym.critics.cascade import Alternative, cascade
from ceb_gym.critics.rules import RulesCritic
from ceb_gym.critics.simple import ConstantCritic, CountsCritic


class BashEnv(ScriptedTextEnv):
    """Its name tells the rules how its actions read."""


def episode_sources(env: Any, action: str = "ls") -> list[str]:
    env.reset(seed=0)
    found, over = [], False
    while not over:
        *_, terminated, truncated, info = env.step(action)
        found.append(info["ceb"]["source"])
        over = terminated or truncated
    return found


@pytest.mark.parametrize("other", ["counts", "rules?kind=bash&other=0.7", "constant:0.4"])
def test_a_cold_bank_is_served_by_the_alternative_until_it_has_enough_episodes(wrap: Any, other: str) -> None:
    env = wrap(critic=f"neighbors | {other}{'&' if '?' in other else '?'}until=2")
    name = other.partition("?")[0]
    assert [set(episode_sources(env)) for _ in range(4)] == [{name}, {name}, {"neighbors"}, {"neighbors"}]


def test_records_name_the_critic_that_answered(wrap: Any) -> None:
    env = wrap(critic="base_rate | constant:0.4?until=1")
    episode_sources(env)
    episode_sources(env)
    critics = [record.critic for record in env.bank.records("ScriptedTextEnv")]
    assert critics == ["constant:0.4"] * 3 + ["base_rate"] * 3


def test_the_learned_part_has_learned_when_it_takes_over(wrap: Any) -> None:
    alone, joined = wrap(critic="counts"), wrap(critic="counts | rules?until=2")
    for env in (alone, joined):
        for _ in range(3):
            episode_sources(env)
        env.reset(seed=0)
    assert joined.assess("ls").verdict == alone.assess("ls").verdict


def test_a_failing_critic_is_replaced_and_the_step_runs(wrap: Any, critic: TableCritic) -> None:
    def fail() -> None:
        raise TimeoutError("too slow")

    critic.on_judge = fail
    env = wrap(critic=cascade(critic, CountsCritic()))
    assert set(episode_sources(env)) == {"counts"}
    assert env.unwrapped.arrived == ["ls"] * 3
    critic.on_judge = None
    assert set(episode_sources(env)) == {"table"}


def test_a_cascade_of_which_all_fail_follows_on_critic_error(wrap: Any, critic: TableCritic) -> None:
    critic.table["ls"] = 7.0
    env = wrap(critic=cascade(critic, RulesCritic()), on_critic_error="unscored")
    env.reset()
    block = env.step("ls")[4]["ceb"]
    assert (block["scored"], block["source"]) == (False, "table | rules")


def test_risky_steps_are_routed_to_the_alternative_and_deferred(wrap: Any) -> None:
    inner = BashEnv()
    env = wrap(inner, critic="constant:0.9 | rules?route=risk", policy="defer_below:0.2")
    env.reset()
    safe, risky = env.step("ls")[4]["ceb"], env.step("rm -rf x")[4]["ceb"]
    assert (safe["source"], safe["confidence"], safe["executed"]) == ("constant:0.9", 0.9, True)
    assert (risky["source"], risky["confidence"], risky["executed"]) == ("rules", 0.05, False)
    assert inner.arrived == ["ls"]


def test_rules_alone_leave_harmless_steps_unscored(wrap: Any) -> None:
    env = wrap(BashEnv(), critic="rules")
    env.reset()
    assert [env.step(action)[4]["ceb"]["confidence"] for action in ("ls", "rm x")] == [-1.0, 0.05]


def test_a_cascade_survives_the_round_trip_of_the_spec() -> None:
    text = "neighbors?k=3 | counts?until=30 | rules?kind=bash&risky=0.1&route=risk"
    env = ConfidenceWrapper(gym.make("CartPole-v1"), critic=text, labeler="return:0.9")
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        again = gym.make(spec)
        assert (again.spec.additional_wrappers[-1].kwargs or {})["critic"] == text
        again.reset(seed=0)
        assert again.step(0)[4]["ceb"]["source"] == "counts"
        again.close()


def test_a_cascade_object_works_like_its_spec(wrap: Any) -> None:
    built = cascade(CountsCritic(), Alternative(ConstantCritic(0.4), until=1))
    env, same = wrap(critic=built), wrap(critic="counts | constant:0.4?until=1")
    for _ in range(3):
        assert episode_sources(env) == episode_sources(same)
