"""What is asked of a language model, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from ceb_gym.errors import ChatError
from ceb_gym.types import TokenLogprob

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request; what an endpoint does not support is left out of what is sent, and remembered.

    Attributes:
        n: How many independent replies; topped up by single requests with seeds of their own where the
            endpoint gives fewer.
        max_tokens: Of one reply.
        seed: For sampling; the choices that are asked for singly get seed + 1, seed + 2, ...
        top_logprobs: How many alternatives per token, 0 for only the token's own log probability; None asks
            for no log probabilities.
        json_schema: Schema of the JSON object wanted; None for plain text.
        stop: Texts at which the reply ends.
    """

    messages: tuple[Message, ...]
    temperature: float = 0.0
    n: int = 1
    max_tokens: int = 256
    seed: int | None = None
    top_logprobs: int | None = None
    json_schema: Mapping[str, Any] | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """One reply.

    Attributes:
        text: "" where the endpoint gave no content.
        finish_reason: Such as "stop", "length", "content_filter"; "" where not given.
        tokens: None where no log probabilities came.
        seed: The seed it was asked for with.
    """

    text: str
    finish_reason: str = ""
    tokens: tuple[TokenLogprob, ...] | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What came of one request.

    Attributes:
        choices: `n` of them, or fewer where some failed; at least one.
        usage: What it cost: `requests` (really made), `prompt_tokens`, `completion_tokens`, `cached_tokens`,
            `seconds`, `cost` where prices are known. A reply from the cache has `requests` 0.
        notes: What the caller should know, such as parameters that were dropped.
    """

    choices: tuple[ChatChoice, ...]
    usage: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@runtime_checkable
class Chat(Protocol):
    """A language model behind an endpoint."""

    @property
    def model(self) -> str:
        """The model's name."""
        ...

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        """Answers all requests, as many at once as its concurrency allows; a failure takes its own place."""
        ...
