"""The summarizer for any environment that brings none of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces

from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Settings
from ceb_gym.summaries.spaces import SpaceDescriber, plain_text
from ceb_gym.text import shorten

TASK_KEYS = ("task", "instruction", "goal")
TASK_CHARS = 4_000
_MAX_JOINED_WORDS = 4 * 64  # an action joined with every word of a long state would drown the rest


def task_from(info: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The task under `task`, `instruction` or `goal` of the reset's info, then of its options, or ""."""
    for source in (info, options):
        for key in TASK_KEYS:
            value = source.get(key)
            if isinstance(value, str) and value:
                return shorten(value, TASK_CHARS)
    return ""


class GenericSummarizer:
    """Turns values of any Gymnasium space into text.

    Numbers become words (see `ceb_gym.summaries.words`), text stays text, long text keeps head and tail.

    Args:
        observation_space: The environment's, if known.
        action_space: The environment's, if known.
        state_chars: Characters kept of a text state.
        outcome_chars: Characters kept of an outcome.
        action_chars: Characters kept of an action.
        action_names: Names of a discrete action space's values, in order, comma-separated if a string.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        *,
        state_chars: int = 2_000,
        outcome_chars: int = 1_000,
        action_chars: int = 1_000,
        action_names: str | Sequence[str] = (),
    ) -> None:
        for name, value in (
            ("state_chars", state_chars),
            ("outcome_chars", outcome_chars),
            ("action_chars", action_chars),
        ):
            if not isinstance(value, int) or value < 10:
                raise ConfigurationError(f"{name} is {value!r}: give a whole number from 10 on.")
        names = action_names.split(",") if isinstance(action_names, str) else list(action_names)
        names = [name for name in names if name]
        if names and isinstance(action_space, spaces.Discrete) and len(names) != action_space.n:
            raise ConfigurationError(
                f"action_names has {len(names)} names for {action_space.n} actions: give one for each."
            )
        self._state = SpaceDescriber(observation_space, "state")
        self._action = SpaceDescriber(action_space, "action", names)
        self._state_chars, self._outcome_chars, self._action_chars = state_chars, outcome_chars, action_chars

    @classmethod
    def for_spaces(
        cls, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], **options: Any
    ) -> GenericSummarizer:
        """Builds the summarizer for an environment's spaces."""
        return cls(observation_space, action_space, **options)

    def bind(self, settings: Settings, scope: str) -> None:
        """Uses the bin edges that the bank froze for the scope."""
        self._state.bind(settings, scope)
        self._action.bind(settings, scope)

    def task(self, observation: Any, info: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """The task as the environment states it, or ""."""
        self._state.observe(observation)
        return task_from(info, options)

    def state(self, observation: Any, info: Mapping[str, Any], action: Any) -> str:
        """The observation; for numeric spaces each word also joined with the action."""
        words = self._state(observation)
        if not self._state.numeric:
            return shorten("\n".join(words), self._state_chars)
        if len(words) <= _MAX_JOINED_WORDS and self._action.numeric:
            joint = "_".join(self._action(action)[:8])
            words = words + [f"{word}_{joint}" for word in words]
        return " ".join(words)

    def action(self, action: Any) -> str:
        """The action: text as it is, numbers as words."""
        return shorten(" ".join(self._action(action)), self._action_chars)

    def outcome(self, observation: Any, info: Mapping[str, Any]) -> str:
        """The next observation, for reading rather than for comparing. Called once an executed step."""
        self._state.observe(observation)
        if self._state.numeric and not hasattr(observation, "ndim"):
            return " ".join(self._state(observation))
        return shorten(plain_text(observation), self._outcome_chars)
