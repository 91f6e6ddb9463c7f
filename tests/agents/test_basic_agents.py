from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from ceb_gym.agents.basic import Agent, FunctionAgent, PlannerAgent, RandomAgent, RecordedAgent
from ceb_gym.errors import ConfigurationError, UsageError


def actions(agent: Agent, env: gym.Env[Any, Any], count: int = 30) -> list[int]:
    agent.begin(env)
    return [int(agent.act(0, {})) for _ in range(count)]


def mean_return(agent: Agent, env: gym.Env[Any, Any], episodes: int) -> float:
    total = 0.0
    for episode in range(episodes):
        observation, info = env.reset(seed=episode)
        agent.begin(env)
        ended = False
        while not ended:
            observation, reward, terminated, truncated, info = env.step(agent.act(observation, info))
            total += float(reward)
            ended = terminated or truncated
    return total / episodes


def test_the_same_seed_gives_the_same_random_actions() -> None:
    env = gym.make("FrozenLake-v1")
    assert actions(RandomAgent(3), env) == actions(RandomAgent(3), env) != actions(RandomAgent(4), env)


def test_a_random_agent_leaves_the_environments_own_sampling_alone() -> None:
    used, unused = gym.make("FrozenLake-v1"), gym.make("FrozenLake-v1")
    for env in (used, unused):
        env.action_space.seed(1)
    actions(RandomAgent(3), used)
    assert [used.action_space.sample() for _ in range(20)] == [
        unused.action_space.sample() for _ in range(20)
    ]


def test_a_random_agent_goes_on_from_episode_to_episode() -> None:
    env = gym.make("FrozenLake-v1")
    agent = RandomAgent(3)
    assert actions(agent, env) != actions(agent, env)


def test_a_random_agent_notices_another_action_space() -> None:
    agent = RandomAgent(3)
    assert set(actions(agent, gym.make("CartPole-v1"), 200)) == {0, 1}
    assert set(actions(agent, gym.make("FrozenLake-v1"), 200)) == {0, 1, 2, 3}


def test_a_planner_of_full_skill_always_reaches_the_goal() -> None:
    env = gym.make("FrozenLake-v1", is_slippery=False)
    assert mean_return(PlannerAgent(1.0), env, 3) == 1.0


def test_a_planner_with_less_skill_makes_mistakes() -> None:
    env = gym.make("FrozenLake-v1", is_slippery=False)
    assert 0.0 < mean_return(PlannerAgent(0.7, seed=0), env, 40) < 1.0


def test_the_same_seed_gives_the_same_mistakes() -> None:
    env = gym.make("FrozenLake-v1")
    assert actions(PlannerAgent(0.5, seed=1), env) == actions(PlannerAgent(0.5, seed=1), env)


def test_a_planner_plans_anew_for_another_map() -> None:
    agent = PlannerAgent(1.0)
    maps = (["SFFF", "HHHF", "HHHF", "HHHG"], ["SHHH", "FHHH", "FHHH", "FFFG"])
    returns = [
        mean_return(agent, gym.make("FrozenLake-v1", desc=desc, is_slippery=False), 1) for desc in maps
    ]
    assert returns == [1.0, 1.0]


@pytest.mark.parametrize("skill", [-0.1, 1.1, float("nan"), "0.5", True])
def test_a_skill_that_is_no_probability_is_refused(skill: Any) -> None:
    with pytest.raises(ConfigurationError, match="skill is"):
        PlannerAgent(skill)


@pytest.mark.parametrize(
    ("agent", "said"), [(PlannerAgent(), "no.*transition table|has none"), (RecordedAgent(), "no recording")]
)
def test_an_agent_that_does_not_fit_the_environment_says_so(agent: Agent, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        agent.begin(gym.make("CartPole-v1"))


@pytest.mark.parametrize(
    "agent", [RandomAgent(), PlannerAgent(), RecordedAgent()], ids=lambda each: type(each).__name__
)
def test_acting_before_begin_is_a_usage_error(agent: Agent) -> None:
    with pytest.raises(UsageError, match="before `begin`"):
        agent.act(0, {})


def test_a_recorded_agent_finds_the_recording_below_wrappers() -> None:
    class Replay(gym.Env[int, str]):
        observation_space = gym.spaces.Discrete(1)
        action_space = gym.spaces.Text(5)

        def recorded_action(self) -> str:
            return "ls"

    agent = RecordedAgent()
    agent.begin(gym.wrappers.TimeLimit(Replay(), 5))
    assert agent.act(0, {}) == "ls"


def test_a_function_is_an_agent() -> None:
    agent = FunctionAgent(lambda observation, info: (observation, info["task"]))
    agent.begin(gym.make("FrozenLake-v1"))
    assert agent.act(3, {"task": "x"}) == (3, "x")
