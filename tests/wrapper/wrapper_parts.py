"""Small environments whose every call is counted, and critics that say what they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from ceb_envs.spaces import UnicodeText
from ceb_gym import Precedents, Query, Verdict


class ScriptedTextEnv(gym.Env[str, str]):
    """Observes the number of steps as text; reward by position; every action that arrives is noted."""

    metadata = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own convention

    def __init__(self, rewards: Sequence[float] = (0.0, 0.5, 1.0), fail_at: int | None = None) -> None:
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.rewards = tuple(rewards)
        self.fail_at = fail_at
        self.arrived: list[Any] = []
        self.position = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.position = 0
        return "screen 0", {"task": "reach the end"}

    def step(self, action: str) -> Any:
        self.arrived.append(action)
        if self.fail_at == self.position:
            raise OSError("the terminal is gone")
        reward = self.rewards[self.position]
        self.position += 1
        return f"screen {self.position}", reward, self.position == len(self.rewards), False, {}


class TableCritic:
    """Confidence by action text; 0.9 for others; notes the queries it saw."""

    name = "table"
    k = 2

    def __init__(self, table: dict[str, Any] | None = None) -> None:
        self.table = table or {}
        self.seen: list[tuple[Query, Precedents]] = []
        self.on_judge: Callable[[], None] | None = None

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        if self.on_judge is not None:
            self.on_judge()
        self.seen.extend(zip(queries, precedents, strict=True))
        return [Verdict(self.table.get(query.action, 0.9)) for query in queries]
