"""The options of spec strings that are meant for the endpoint: `openai:MODEL?base_url=...&k=2`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ceb_gym.chat.client import OpenAIChat
from ceb_gym.errors import ConfigurationError

_SECRETS = frozenset({"api_key", "apikey", "key", "token", "password", "secret"})
CHAT_OPTIONS = frozenset(inspect.signature(OpenAIChat).parameters) - {"model", "api_key"}


def split_chat_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits options into those of the endpoint and all others.

    Raises:
        ConfigurationError: If a key is among them: specs are stored and shown.
    """
    if secret := _SECRETS & {name.lower() for name in options}:
        raise ConfigurationError(
            f"{min(secret)} cannot be an option, since specs are stored and shown: put the key into an "
            "environment variable and name that with api_key_env."
        )
    chat = {name: value for name, value in options.items() if name in CHAT_OPTIONS}
    return chat, {name: value for name, value in options.items() if name not in CHAT_OPTIONS}


def make_chat(model: str, **options: Any) -> OpenAIChat:
    """Makes the client of a model; options as those of `OpenAIChat`. Raises ConfigurationError."""
    return OpenAIChat(model, **options)
