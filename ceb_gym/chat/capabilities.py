"""What an endpoint does not support, learned from its refusals and remembered per endpoint and model."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ceb_gym.chat.values import ChatRequest

_FEWER_TOP_LOGPROBS = 5  # some deployments give no more
_TOO_MANY_CHOICES = re.compile(
    r"['\"`]n['\"`]|\bn(_cmpl)?\b.{0,40}(slot|greater|exceed|at most|only 1|must be 1|not supported)",
    re.I | re.S,
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """How requests have to be changed for one endpoint and model.

    Attributes:
        tokens_name: The parameter that limits a reply.
        json_mode: The most that the endpoint takes: "json_schema", "json_object" or "".
        top_logprobs: The most alternatives per token that it gives.
        dropped: Parameters that it does not take.
    """

    tokens_name: str = "max_tokens"
    json_mode: str = "json_schema"
    top_logprobs: int = 20
    dropped: frozenset[str] = frozenset()

    def parameters(self, request: ChatRequest, n: int, seed: int | None) -> dict[str, Any]:
        """The request as the endpoint takes it, without the model."""
        wanted: dict[str, Any] = {
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            self.tokens_name: request.max_tokens,
            "temperature": request.temperature,
        }
        if n > 1:
            wanted["n"] = n
        if seed is not None:
            wanted["seed"] = seed
        if request.top_logprobs is not None:
            wanted["logprobs"] = True
            if request.top_logprobs:
                wanted["top_logprobs"] = min(request.top_logprobs, self.top_logprobs)
        if request.json_schema is not None and self.json_mode:
            wanted["response_format"] = _response_format(self.json_mode, request.json_schema)
        if request.stop:
            wanted["stop"] = list(request.stop)
        return {name: value for name, value in wanted.items() if name not in self.dropped}

    def without(self, sent: Mapping[str, Any], param: str, message: str) -> Capabilities | None:
        """What to send after a refusal; None where it does not say what was wrong with it.

        Args:
            sent: What was refused.
            param: The parameter that the endpoint names; "" where it names none.
            message: What it says.
        """
        culprit = param if param in sent else _named(sent, message)
        if culprit == "max_tokens":
            return replace(self, tokens_name="max_completion_tokens")
        if culprit == "response_format":
            lesser = {"json_schema": "json_object", "json_object": ""}.get(self.json_mode)
            return None if lesser is None else replace(self, json_mode=lesser)
        if culprit == "top_logprobs" and sent["top_logprobs"] > _FEWER_TOP_LOGPROBS:
            return replace(self, top_logprobs=_FEWER_TOP_LOGPROBS)
        if culprit == "logprobs":
            return replace(self, dropped=self.dropped | {"logprobs", "top_logprobs"})
        if culprit in ("", "messages", "model", "max_completion_tokens"):
            return None
        return replace(self, dropped=self.dropped | {culprit})


def _response_format(mode: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if mode == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": dict(schema), "strict": True}}


def _named(sent: Mapping[str, Any], message: str) -> str:
    """The sent parameter that a refusal names in its text."""
    if "n" in sent and _TOO_MANY_CHOICES.search(message):
        return "n"
    names = [name for name in sent if name != "n" and re.search(rf"\b{name}\b", message)]
    if not names and "json_schema" in message and "response_format" in sent:
        return "response_format"
    return max(names, key=len, default="")


_known: dict[tuple[str, str], Capabilities] = {}
_lock = threading.Lock()


def known_capabilities(endpoint: str, model: str) -> Capabilities:
    """What this process has learned of an endpoint and model so far."""
    with _lock:
        return _known.get((endpoint, model), Capabilities())


def remember_capabilities(endpoint: str, model: str, found: Capabilities) -> None:
    """Keeps what was learned, for all clients of this process."""
    with _lock:
        _known[endpoint, model] = found
