"""From the body of an HTTP reply to values; every odd body that endpoints send becomes a clear error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ceb_gym.chat.values import ChatChoice
from ceb_gym.errors import ChatError
from ceb_gym.text import clean_text
from ceb_gym.types import TokenLogprob

_SHOWN_CHARS = 120


def read_body(body: str, seed: int | None) -> tuple[list[ChatChoice], dict[str, float]]:
    """Returns the choices and the usage (prompt_tokens, completion_tokens, cached_tokens) of a reply.

    Raises:
        ChatError: If the body is no JSON object, or has no choice.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ChatError(f"The endpoint answered with something that is no JSON: {_shown(body)}") from error
    if not isinstance(value, dict):
        raise ChatError(f"The endpoint answered with JSON that is no object: {_shown(body)}")
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices:
        what = value.get("error") or body
        raise ChatError(f"The endpoint answered without any choice: {_shown(str(what))}")
    return [_choice(item, seed) for item in choices], _usage(value.get("usage"))


def _choice(value: Any, seed: int | None) -> ChatChoice:
    choice = value if isinstance(value, dict) else {}
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    text = content if isinstance(content, str) else _joined(content)
    finish = choice.get("finish_reason")
    if not text and isinstance(message, dict) and message.get("refusal"):
        finish = "refusal"
    return ChatChoice(clean_text(text), finish if isinstance(finish, str) else "", _tokens(choice), seed)


def _joined(content: Any) -> str:
    """Some endpoints give the text in parts, some of which may be thoughts."""
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


def _tokens(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...] | None:
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return None
    return tuple(_token(item) for item in content if isinstance(item, dict))


def _token(value: Mapping[str, Any]) -> TokenLogprob:
    top = value.get("top_logprobs")
    pairs = [
        (str(item.get("token", "")), _finite(item.get("logprob")))
        for item in (top if isinstance(top, list) else [])
        if isinstance(item, dict)
    ]
    return TokenLogprob(
        str(value.get("token", "")),
        _finite(value.get("logprob")),
        tuple((text, logprob) for text, logprob in pairs if logprob is not None),
        value.get("bytes") == [],
    )


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON knows whole numbers of any size
        return None
    return number if math.isfinite(number) else None


def _usage(value: Any) -> dict[str, float]:
    usage = value if isinstance(value, dict) else {}
    details = usage.get("prompt_tokens_details")
    found = {
        "prompt_tokens": _finite(usage.get("prompt_tokens")),
        "completion_tokens": _finite(usage.get("completion_tokens")),
        "cached_tokens": _finite(details.get("cached_tokens")) if isinstance(details, dict) else None,
    }
    return {name: number for name, number in found.items() if number is not None and number >= 0}


def _shown(text: str) -> str:
    plain = " ".join(clean_text(text).split())
    return repr(plain if len(plain) <= _SHOWN_CHARS else f"{plain[:_SHOWN_CHARS]}...")
