"""Agents for examples and experiments: random, planned with mistakes, recorded, or a function of yours."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from ceb_gym.errors import ConfigurationError, UsageError

Part = TypeVar("Part")


@runtime_checkable
class Agent(Protocol):
    """Proposes actions."""

    def begin(self, env: gym.Env[Any, Any]) -> None:
        """Is told that an episode of this environment has begun."""
        ...

    def act(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Returns the next action."""
        ...


def _begun(prepared: Part | None) -> Part:
    if prepared is None:
        raise UsageError("`act` was called before `begin`: call `begin` at the start of each episode.")
    return prepared


class RandomAgent:
    """Samples the action space.

    Args:
        seed: The same seed gives the same actions; None draws one.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._space: gym.Space[Any] | None = None

    def begin(self, env: gym.Env[Any, Any]) -> None:
        """Takes a copy of a new action space, so that the environment's own stays as it is."""
        if self._space is None or self._space != env.action_space:
            self._space = copy.deepcopy(env.action_space)
            self._space.seed(self._seed)

    def act(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Returns a random action."""
        return _begun(self._space).sample()


class PlannerAgent:
    """Acts by the optimal plan with probability `skill`, at random otherwise.

    For environments that publish their transition table as `env.unwrapped.P` (Gymnasium's FrozenLake,
    CliffWalking and Taxi). Without mistakes there would be nothing for a critic to tell apart.

    Args:
        skill: Probability in [0, 1] of the planned action.
        seed: The same seed gives the same mistakes.
        gamma: Discount factor of the plan.
    """

    def __init__(self, skill: float = 0.7, seed: int | None = None, gamma: float = 0.99) -> None:
        if isinstance(skill, bool) or not isinstance(skill, int | float) or not 0 <= skill <= 1:
            raise ConfigurationError(f"The planner's skill is {skill!r}: give a probability in [0, 1].")
        self._skill = float(skill)
        self._gamma = gamma
        self._rng = np.random.default_rng(seed)
        self._table: Any = None
        self._plan: NDArray[np.intp] | None = None
        self._num_actions = 0

    def begin(self, env: gym.Env[Any, Any]) -> None:
        """Plans by value iteration at the first episode of each transition table."""
        table = getattr(env.unwrapped, "P", None)
        if not isinstance(table, Mapping):
            raise ConfigurationError(
                "The planner agent needs an environment with a transition table `P` (FrozenLake, "
                f"CliffWalking, Taxi); {type(env.unwrapped).__name__} has none: use --agent random or "
                "module:function."
            )
        if table is not self._table:
            values = _action_values(table, self._gamma)
            self._table, self._num_actions = table, values.shape[1]
            self._plan = values.argmax(axis=1)

    def act(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Returns the planned or a random action."""
        plan = _begun(self._plan)
        if self._rng.random() < self._skill:
            return int(plan[int(observation)])
        return int(self._rng.integers(self._num_actions))


def _action_values(table: Mapping[Any, Any], gamma: float) -> NDArray[np.float64]:
    """Optimal action values of a tabular environment, shape (n_states, n_actions)."""
    n_states, n_actions = len(table), len(table[0])
    transition = np.zeros((n_states, n_actions, n_states))
    reward = np.zeros((n_states, n_actions))
    for state in range(n_states):
        for action in range(n_actions):
            for probability, following, paid, ended in table[state][action]:
                reward[state, action] += probability * paid
                if not ended:
                    transition[state, action, following] += probability
    values = np.zeros((n_states, n_actions))
    for _ in range(1_000):
        updated = reward + gamma * transition @ values.max(axis=1)
        if np.abs(updated - values).max() < 1e-10:
            return np.asarray(updated, dtype=np.float64)
        values = updated
    return values


class RecordedAgent:
    """Repeats what the recorded agent did; for replay environments that offer `recorded_action()`."""

    def __init__(self) -> None:
        self._next: Callable[[], Any] | None = None

    def begin(self, env: gym.Env[Any, Any]) -> None:
        """Finds the recording."""
        try:
            self._next = env.get_wrapper_attr("recorded_action")
        except AttributeError:
            raise ConfigurationError(
                f"{type(env.unwrapped).__name__} replays no recording, so there is no recorded agent: "
                "use --stream FILE, or another --agent."
            ) from None

    def act(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Returns the recorded action."""
        return _begun(self._next)()


class FunctionAgent:
    """A function of observation and info as agent."""

    def __init__(self, function: Callable[[Any, Mapping[str, Any]], Any]) -> None:
        self._function = function

    def begin(self, env: gym.Env[Any, Any]) -> None:
        """Has nothing to prepare."""

    def act(self, observation: Any, info: Mapping[str, Any]) -> Any:
        """Returns what the function says."""
        return self._function(observation, info)
