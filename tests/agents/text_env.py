"""A tiny environment of text: say the secret word that the observation shows."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

WORDS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;!?'\"`()[]{}<>|/\\-_=+*&^%$#@~\n"


class SayTheWord(gym.Env[str, str]):
    """Ends when the word was said, or after four steps."""

    observation_space = gym.spaces.Text(500, charset=WORDS)
    action_space = gym.spaces.Text(5_000, charset=WORDS)
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        self.said: list[str] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.said = []
        return "The word is: blue", {"task": "Say the word."}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.said.append(action)
        done = "blue" in action.lower()
        return "Right." if done else "Wrong. The word is: blue", float(done), done, len(self.said) >= 4, {}
