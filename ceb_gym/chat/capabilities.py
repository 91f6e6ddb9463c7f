"""What an endpoint does not support, learned from its refusals and remembered per endpoint and model."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ceb_gym.chat.forking import renew_after_fork
from ceb_gym.chat.values import ChatRequest

_TOKENS_NAMES = ("max_tokens", "max_completion_tokens")
_JSON_MODES = ("json_schema", "json_object", "")  # each is tried after the one before it was refused
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
        top = re.split(r"[.\[]", param)[0]  # some name a part, such as response_format.json_schema
        culprit = top if top in sent else _named(sent, message)
        if culprit == "max_tokens":
            return replace(self, tokens_name=_TOKENS_NAMES[1])
        if culprit == "response_format":
            return replace(self, json_mode=_JSON_MODES[_JSON_MODES.index(self.json_mode) + 1])
        if culprit == "top_logprobs" and sent["top_logprobs"] > _FEWER_TOP_LOGPROBS:
            return replace(self, top_logprobs=_FEWER_TOP_LOGPROBS)
        if culprit == "logprobs":
            return replace(self, dropped=self.dropped | {"logprobs", "top_logprobs"})
        if culprit in ("", "messages", "model", "max_completion_tokens"):
            return None
        return replace(self, dropped=self.dropped | {culprit})

    def joined(self, other: Capabilities) -> Capabilities:
        """What both allow: threads learn at the same time."""
        return Capabilities(
            max(self.tokens_name, other.tokens_name, key=_TOKENS_NAMES.index),
            max(self.json_mode, other.json_mode, key=_JSON_MODES.index),
            min(self.top_logprobs, other.top_logprobs),
            self.dropped | other.dropped,
        )


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


class _Memory:
    """What this process has learned, by base URL and model."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Capabilities] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.Lock()

    def find(self, base_url: str, model: str) -> Capabilities:
        with self._lock:
            return self._known.get((base_url, model), Capabilities())

    def join(self, base_url: str, model: str, found: Capabilities) -> None:
        with self._lock:
            known = self._known.get((base_url, model), Capabilities())
            self._known[base_url, model] = known.joined(found)


_memory = _Memory()


def known_capabilities(base_url: str, model: str) -> Capabilities:
    """What this process has learned of an endpoint and model so far."""
    return _memory.find(base_url, model)


def remember_capabilities(base_url: str, model: str, found: Capabilities) -> None:
    """Keeps what was learned, for all clients of this process."""
    _memory.join(base_url, model, found)
