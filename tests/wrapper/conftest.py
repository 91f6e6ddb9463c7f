from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from wrapper_parts import ScriptedTextEnv, TableCritic

from ceb_gym import ConfidenceWrapper


@pytest.fixture
def critic() -> TableCritic:
    return TableCritic({"bad": 0.1, "worse": 0.05, "unknown": None})


@pytest.fixture
def wrap(critic: TableCritic) -> Iterator[Any]:
    """Builds a wrapped ScriptedTextEnv; closes all at the end."""
    built: list[ConfidenceWrapper[Any, Any]] = []

    def build(env: gym.Env[Any, Any] | None = None, **arguments: Any) -> ConfidenceWrapper[Any, Any]:
        arguments.setdefault("critic", critic)
        arguments.setdefault("labeler", "reward_level")
        wrapper = ConfidenceWrapper(env if env is not None else ScriptedTextEnv(), **arguments)
        built.append(wrapper)
        return wrapper

    yield build
    for wrapper in built:
        wrapper.close()
