"""The options of spec strings that are meant for the endpoint: `openai:MODEL?base_url=...&k=2`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ceb_gym.chat.client import OpenAIChat

CHAT_OPTIONS = frozenset(inspect.signature(OpenAIChat).parameters) - {"model", "api_key"}


def split_chat_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into those of the endpoint and all others."""
    chat = {name: value for name, value in options.items() if name in CHAT_OPTIONS}
    return chat, {name: value for name, value in options.items() if name not in CHAT_OPTIONS}


def make_chat(model: str, **options: Any) -> OpenAIChat:
    """Makes the client of a model; options as those of `OpenAIChat`. Raises ConfigurationError."""
    return OpenAIChat(model, **options)
