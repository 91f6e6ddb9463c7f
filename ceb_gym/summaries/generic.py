"""The summarizer for any environment that brings none of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Settings
from ceb_gym.summaries.plain import plain_text
from ceb_gym.summaries.spaces import SpaceDescriber
from ceb_gym.text import shorten

TASK_KEYS = ("task", "instruction", "goal")
TASK_CHARS = 4_000
WORDS_CHARS = 12_000
_WORD = re.compile(r"\w+")
_MAX_WORD_CHARS = 400
_MAX_JOINED_WORDS = 4 * 64  # an action joined with every word of a long state would drown the rest


def task_from(info: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The task under `task`, `instruction` or `goal` of the reset's info, then of its options, or ""."""
    for source in (info, options):
        for key in TASK_KEYS:
            value = source.get(key)
            if isinstance(value, str) and value.strip():
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
            if isinstance(value, bool) or not isinstance(value, int) or value < 10:
                raise ConfigurationError(f"{name} is {value!r}: give a whole number from 10 on.")
        names = _checked_names(action_names, action_space)
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
        """The task as the environment states it, or "". Called once an episode, at its start."""
        self._state.refresh()
        self._action.refresh()
        self._state.observe(observation)
        return task_from(info, options)

    def state(self, observation: Any, info: Mapping[str, Any], action: Any) -> str:
        """The observation; for numeric spaces each word also joined with the action."""
        words = self._state(observation)
        is_text = len(words) == 1 and not _is_word(words[0])  # a value outside its numeric space
        if is_text or not self._state.numeric:
            limit = self._state_chars if is_text or self._state.holds_text else WORDS_CHARS
            return shorten("\n".join(words), max(limit, self._state_chars))
        if len(words) <= _MAX_JOINED_WORDS and self._action.numeric:
            joint = "_".join(self._action(action)[:8])
            if _is_word(joint):  # an action outside its space may be any text
                words = words + [f"{word}_{joint}" for word in words]
        return " ".join(words)

    def action(self, action: Any) -> str:
        """The action: text as it is, numbers as words."""
        return shorten(" ".join(self._action(action)), self._action_chars)

    def outcome(self, observation: Any, info: Mapping[str, Any]) -> str:
        """The next observation, for reading rather than for comparing. Called once an executed step."""
        self._state.observe(observation)
        if self._state.numeric and not (isinstance(observation, np.ndarray) and observation.ndim > 0):
            return shorten(" ".join(self._state(observation)), self._outcome_chars)
        return shorten(plain_text(observation), self._outcome_chars)


def _is_word(text: str) -> bool:
    return len(text) <= _MAX_WORD_CHARS and _WORD.fullmatch(text) is not None


def _checked_names(names: str | Sequence[str], space: spaces.Space[Any] | None) -> list[str]:
    """The names of a discrete space's actions; none where none are given."""
    listed = names.split(",") if isinstance(names, str) else names
    if not isinstance(listed, Sequence) or not all(isinstance(name, str) for name in listed):
        raise ConfigurationError(f"action_names is {names!r}: give names in order, separated by commas.")
    listed = [re.sub(r"\W+", "_", name.strip()) for name in listed if name.strip()]
    if listed and isinstance(space, spaces.Discrete) and len(listed) != space.n:
        raise ConfigurationError(
            f"action_names has {len(listed)} names for {space.n} actions: give one for each."
        )
    if len(set(listed)) < len(listed):
        raise ConfigurationError(f"action_names is {names!r}: two actions have the same name.")
    return listed
