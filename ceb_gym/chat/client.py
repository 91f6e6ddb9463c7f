"""The client for OpenAI, Azure, vLLM, llama.cpp, Ollama and whatever else speaks their protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from ceb_gym.chat.budget import Budget, Usage
from ceb_gym.chat.cache import CACHE_MODES, CacheMode, ReplyCache
from ceb_gym.chat.capabilities import known_capabilities, remember_capabilities
from ceb_gym.chat.connection import Connection
from ceb_gym.chat.endpoint import Endpoint
from ceb_gym.chat.failures import Refusal, Retry, wait_before_retry
from ceb_gym.chat.prompting import estimate_tokens
from ceb_gym.chat.values import ChatChoice, ChatReply, ChatRequest
from ceb_gym.chat.wire import read_body
from ceb_gym.errors import ChatError, ConfigurationError

_MOST_ADAPTIONS = 10


class OpenAIChat:
    """A model behind an OpenAI-compatible endpoint.

    Requests go out at once up to `concurrency`, from any number of threads together; a forked child connects
    anew. Parameters that the endpoint refuses are left out from then on. Failures that may pass are retried
    until the deadline.

    Args:
        model: Its name (for Azure the deployment's).
        base_url: Of the endpoint, such as `http://127.0.0.1:8080/v1`; None for OpenAI's own, or for the
            environment variable OPENAI_BASE_URL.
        api_key: Called for the key of each request. Keys are never stored, logged or shown.
        api_key_env: Where the key is otherwise read from; an endpoint on loopback needs none.
        timeout_s: Of one request, from its start to its last byte.
        deadline_s: Of one call of `complete`, retries and waits included.
        retries: Of one request, after rate limits, overload, time-outs and lost connections.
        concurrency: Most requests at once; 1 for a local llama.cpp.
        cache: Path of the reply cache. Replies that lack choices are not kept.
        cache_mode: "record" asks only for what is not kept, "replay" never asks and needs no key.
        max_requests: Budget, see `Budget`; likewise the others. What was used is in `budget.used`.
        api: "azure" for Azure's addresses, with `api_version`.

    Raises:
        ConfigurationError: If an argument cannot work or there is no key.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key: Callable[[], str] | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        timeout_s: float = 60.0,
        deadline_s: float = 120.0,
        retries: int = 2,
        concurrency: int = 8,
        cache: str | Path | None = None,
        cache_mode: CacheMode = "off",
        max_requests: float | None = None,
        max_total_tokens: float | None = None,
        max_cost: float | None = None,
        prompt_price: float | None = None,
        completion_price: float | None = None,
        api: Literal["openai", "azure"] = "openai",
        api_version: str | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ConfigurationError(f"The model is {model!r}: name one, as in openai:MODEL.")
        self._endpoint = Endpoint(base_url, api_key, api_key_env, api, api_version)
        _check_number("timeout_s", timeout_s, above=0)
        _check_number("deadline_s", deadline_s, above=0)
        _check_whole("retries", retries, 0)
        _check_whole("concurrency", concurrency, 1)
        if cache_mode not in CACHE_MODES:
            raise ConfigurationError(f"cache_mode is {cache_mode!r}: choose one of {', '.join(CACHE_MODES)}.")
        if (cache is None) != (cache_mode == "off"):
            raise ConfigurationError(
                f"cache is {cache!r} and cache_mode {cache_mode!r}: give a path with record or replay."
            )
        self.model = model
        self.budget = Budget(max_requests, max_total_tokens, max_cost, prompt_price, completion_price)
        self._address = self._endpoint.base_url or ""
        self._timeout_s, self._deadline_s, self._retries = timeout_s, deadline_s, retries
        self._concurrency = concurrency
        self._connection = Connection(self._endpoint, model, concurrency)
        self._replay = cache_mode == "replay"
        name = self._endpoint.name
        self._cache = None if cache is None else ReplyCache(cache, name, must_exist=self._replay)
        if not self._replay:
            self._endpoint.key()

    def __repr__(self) -> str:
        """Model and endpoint; nothing secret."""
        return f"OpenAIChat({self.model!r}, endpoint={self._endpoint.name!r})"

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        """Answers all requests; the failure of one takes its place and leaves the others alone."""
        deadline = time.monotonic() + self._deadline_s
        if len(requests) == 1:
            return [self._answer(requests[0], deadline)]
        with ThreadPoolExecutor(max(1, min(self._concurrency, len(requests)))) as pool:
            return list(pool.map(lambda request: self._answer(request, deadline), requests))

    def close(self) -> None:
        """Closes connections; a later call opens new ones."""
        self._connection.close()

    def _answer(self, request: ChatRequest, deadline: float) -> ChatReply | ChatError:
        try:
            if self._cache is not None:
                found = self._cache.find(self.model, request)
                if found is not None:
                    return found
                if self._replay:
                    return self._cache.missing(self.model, request)
            reply = self._ask(request, deadline)
            if self._cache is None or len(reply.choices) < request.n:
                return reply
            return self._cache.keep(self.model, request, reply)
        except ChatError as error:
            return error

    def _ask(self, request: ChatRequest, deadline: float) -> ChatReply:
        """One request for all choices where the endpoint takes that, and single ones for what is missing."""
        usage = Usage()
        choices = self._request(request, request.n, request.seed, deadline, usage)
        failure: ChatError | None = None
        missing = range(len(choices), request.n)
        if missing:
            singles = self._singles(request, missing, deadline, usage)
            choices += [choice for choice in singles if isinstance(choice, ChatChoice)]
            failure = next((single for single in singles if isinstance(single, ChatError)), None)
        dropped = known_capabilities(self._address, self.model).dropped
        notes = [f"the endpoint does not take {', '.join(sorted(dropped))}"] if dropped else []
        numbers = usage.numbers()
        if "estimated" in numbers:
            notes.append("the endpoint did not say how many tokens it used: they are estimated")
        if failure is not None:
            notes.append(f"{request.n - len(choices)} of {request.n} choices are missing: {failure}")
        return ChatReply(tuple(choices[: request.n]), numbers, tuple(notes))

    def _singles(
        self, request: ChatRequest, missing: range, deadline: float, usage: Usage
    ) -> list[ChatChoice | ChatError]:
        def single(number: int) -> ChatChoice | ChatError:
            seed = None if request.seed is None else request.seed + number
            try:
                return self._request(request, 1, seed, deadline, usage)[0]
            except ChatError as error:
                return error

        if self._concurrency == 1 or len(missing) == 1:
            return [single(number) for number in missing]
        with ThreadPoolExecutor(min(self._concurrency, len(missing))) as pool:
            return list(pool.map(single, missing))

    def _request(
        self, request: ChatRequest, n: int, seed: int | None, deadline: float, usage: Usage
    ) -> list[ChatChoice]:
        """Sends one request, changed until the endpoint takes it; what helped is remembered."""
        able = known_capabilities(self._address, self.model)
        for _ in range(_MOST_ADAPTIONS):
            sent = able.parameters(request, n, seed)
            try:
                body = self._send(sent, deadline, usage)
            except Refusal as refusal:
                changed = able.without(sent, refusal.param, refusal.message)
                if changed is None:
                    raise ChatError(refusal.message) from None
                able = changed
                continue
            remember_capabilities(self._address, self.model, able)
            choices, said = read_body(body, seed)
            counted = _counted(said, request, choices)
            cost = self.budget.add_tokens(
                counted.get("prompt_tokens", 0.0), counted.get("completion_tokens", 0.0)
            )
            usage.add(counted if cost is None else {**counted, "cost": cost})
            return choices
        raise ChatError(f"{self._endpoint.name} refused every form of a request to {self.model}.")

    def _send(self, sent: dict[str, Any], deadline: float, usage: Usage) -> str:
        """The body of the reply; waits and tries again where that may help, until the deadline."""

        def start() -> None:
            self.budget.take_request()
            usage.add({"requests": 1.0})

        for attempt in range(self._retries + 1):
            if time.monotonic() >= deadline:
                raise ChatError(
                    f"{self.model} gave no answer within the deadline of {self._deadline_s:g} s: raise "
                    "deadline_s, or concurrency where the endpoint serves more at once."
                )
            try:
                return self._connection.post(sent, self._timeout_s, deadline, start)
            except Retry as again:
                wait_before_retry(again, attempt, self._retries, deadline)
        raise AssertionError("the last attempt returns or raises")


def _counted(said: dict[str, float], request: ChatRequest, choices: list[ChatChoice]) -> dict[str, float]:
    """The usage, estimated where the endpoint says nothing: a budget must not stay unspent for that."""
    if "prompt_tokens" in said and "completion_tokens" in said:
        return said
    estimate = {
        "prompt_tokens": float(sum(estimate_tokens(message.content) for message in request.messages)),
        "completion_tokens": float(sum(estimate_tokens(choice.text) for choice in choices)),
        "estimated": 1.0,
    }
    return {**estimate, **said}


def _check_number(name: str, value: Any, *, above: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < 1e9:
        raise ConfigurationError(f"{name} is {value!r}: give a number above {above:g}.")


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} is {value!r}: give a whole number from {least}.")
