"""How a replayed run is described to critics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ceb_gym.errors import ConfigurationError
from ceb_gym.text import clean_text, shorten

_MIN_CHARS = 2


class ReplaySummarizer:
    """Takes the recorded texts as they are, long ones shortened in the middle."""

    def __init__(
        self, *, state_chars: int = 2_000, outcome_chars: int = 1_000, action_chars: int = 1_000
    ) -> None:
        """Sets how many characters of each text are kept.

        Raises:
            ConfigurationError: If a number is below 2.
        """
        for name, value in (
            ("state_chars", state_chars),
            ("outcome_chars", outcome_chars),
            ("action_chars", action_chars),
        ):
            if value < _MIN_CHARS:
                raise ConfigurationError(f"{name} must be at least {_MIN_CHARS}, got {value}.")
        self._state_chars = state_chars
        self._outcome_chars = outcome_chars
        self._action_chars = action_chars

    def task(self, observation: Any, info: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns the recorded task."""
        return str(info["task"])

    def state(self, observation: Any, info: Mapping[str, Any], action: Any) -> str:
        """Returns the recorded state before the action."""
        return shorten(clean_text(str(observation)), self._state_chars)

    def action(self, action: Any) -> str:
        """Returns the action."""
        return shorten(clean_text(str(action)), self._action_chars)

    def outcome(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Returns the recorded outcome, which is not always the next state."""
        return shorten(str(info["outcome"]), self._outcome_chars)
