"""The client for OpenAI, Azure, vLLM, llama.cpp, Ollama and whatever else speaks their protocol."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from ceb_gym.chat.budget import Budget
from ceb_gym.chat.cache import CACHE_MODES, CacheMode, ReplyCache
from ceb_gym.chat.capabilities import known_capabilities, remember_capabilities
from ceb_gym.chat.failures import Refusal, Retry, refusal_of, wait_before_retry
from ceb_gym.chat.values import ChatChoice, ChatReply, ChatRequest
from ceb_gym.chat.wire import read_body
from ceb_gym.errors import ChatError, ConfigurationError

_MOST_ADAPTIONS = 10
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class OpenAIChat:
    """A model behind an OpenAI-compatible endpoint.

    Requests go out at once up to `concurrency`, also from several threads. Parameters that the endpoint
    refuses are left out from then on. Failures that may pass are retried until the deadline.

    Args:
        model: Its name (for Azure the deployment's).
        base_url: Of the endpoint, such as `http://127.0.0.1:8080/v1`; None for OpenAI's own.
        api_key: Called for the key when a client is made. Keys are never stored, logged or shown.
        api_key_env: Where the key is otherwise read from; an endpoint on loopback needs none.
        timeout_s: Of one request.
        deadline_s: Of one call of `complete`, retries and waits included.
        retries: Of one request, after rate limits, overload, time-outs and lost connections.
        concurrency: Most requests at once; 1 for a local llama.cpp.
        cache: Path of the reply cache.
        cache_mode: "record" asks only for what is not kept, "replay" never asks.
        max_requests: Budget, see `Budget`; likewise the others.
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
        _check_address(base_url, api, api_version)
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
        self._base_url = base_url
        self._endpoint = _endpoint_name(base_url)
        self._api, self._api_version = api, api_version
        self._api_key, self._api_key_env = api_key, api_key_env
        self._timeout_s, self._deadline_s, self._retries = timeout_s, deadline_s, retries
        self._concurrency = concurrency
        self._slots = threading.BoundedSemaphore(concurrency)
        self._replay = cache_mode == "replay"
        self._cache = None if cache is None else ReplyCache(cache, self._endpoint, must_exist=self._replay)
        self._client: Any = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        if not self._replay:
            self._key()

    def __repr__(self) -> str:
        """Model and endpoint; nothing secret."""
        return f"OpenAIChat({self.model!r}, endpoint={self._endpoint!r})"

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        """Answers all requests; the failure of one takes its place and leaves the others alone."""
        deadline = time.monotonic() + self._deadline_s
        if len(requests) == 1:
            return [self._answer(requests[0], deadline)]
        with ThreadPoolExecutor(max(1, min(self._concurrency, len(requests)))) as pool:
            return list(pool.map(lambda request: self._answer(request, deadline), requests))

    def close(self) -> None:
        """Closes connections; a later call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()

    def _answer(self, request: ChatRequest, deadline: float) -> ChatReply | ChatError:
        try:
            if self._cache is not None:
                found = self._cache.find(self.model, request)
                if found is not None:
                    return found
                if self._replay:
                    return self._cache.missing(self.model, request)
            reply = self._ask(request, deadline)
            return reply if self._cache is None else self._cache.keep(self.model, request, reply)
        except ChatError as error:
            return error

    def _ask(self, request: ChatRequest, deadline: float) -> ChatReply:
        """One request for all choices where the endpoint takes that, and single ones for what is missing."""
        started = time.monotonic()
        usage = {"requests": 0.0, "prompt_tokens": 0.0, "completion_tokens": 0.0, "cached_tokens": 0.0}
        choices = self._request(request, request.n, request.seed, deadline, usage)
        failure: ChatError | None = None
        missing = range(len(choices), request.n)
        if missing:
            singles = self._singles(request, missing, deadline, usage)
            choices += [choice for choice in singles if isinstance(choice, ChatChoice)]
            failure = next((single for single in singles if isinstance(single, ChatError)), None)
        usage["seconds"] = time.monotonic() - started
        dropped = known_capabilities(self._endpoint, self.model).dropped
        notes = [f"the endpoint does not take {', '.join(sorted(dropped))}"] if dropped else []
        if failure is not None:
            notes.append(f"{request.n - len(choices)} of {request.n} choices are missing: {failure}")
        return ChatReply(tuple(choices[: request.n]), usage, tuple(notes))

    def _singles(
        self, request: ChatRequest, missing: range, deadline: float, usage: dict[str, float]
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
        self, request: ChatRequest, n: int, seed: int | None, deadline: float, usage: dict[str, float]
    ) -> list[ChatChoice]:
        """Sends one request, changed until the endpoint takes it. Adds to `usage`."""
        for _ in range(_MOST_ADAPTIONS):
            able = known_capabilities(self._endpoint, self.model)
            sent = able.parameters(request, n, seed)
            try:
                body = self._send(sent, deadline, usage)
            except Refusal as refusal:
                changed = able.without(sent, refusal.param, refusal.message)
                if changed is None:
                    raise ChatError(refusal.message) from refusal
                remember_capabilities(self._endpoint, self.model, changed)
                continue
            choices, counted = read_body(body, seed)
            with self._lock:
                for name, number in counted.items():
                    usage[name] = usage.get(name, 0.0) + number
            cost = self.budget.add_tokens(
                counted.get("prompt_tokens", 0.0), counted.get("completion_tokens", 0.0)
            )
            if cost is not None:
                usage["cost"] = usage.get("cost", 0.0) + cost
            return choices
        raise ChatError(f"{self._endpoint} refused every form of a request to {self.model}.")

    def _send(self, sent: dict[str, Any], deadline: float, usage: dict[str, float]) -> str:
        """The body of the reply; waits and tries again where that may help, until the deadline."""
        for attempt in range(self._retries + 1):
            left = deadline - time.monotonic()
            if left <= 0:
                raise ChatError(
                    f"{self.model} gave no answer within the deadline of {self._deadline_s:g} s: raise "
                    "deadline_s, or concurrency where the endpoint serves more at once."
                )
            self.budget.take_request()
            with self._lock:
                usage["requests"] += 1
            try:
                with self._slots:
                    return self._post(sent, min(self._timeout_s, max(deadline - time.monotonic(), 0.01)))
            except Retry as again:
                wait_before_retry(again, attempt, self._retries, deadline)
        raise AssertionError("the last attempt returns or raises")

    def _post(self, sent: dict[str, Any], timeout_s: float) -> str:
        client = self._open_client()
        try:
            raw = client.chat.completions.with_raw_response.create(
                model=self.model, timeout=timeout_s, **sent
            )
            return str(raw.http_response.text)
        except Exception as error:
            failure = refusal_of(error, self.model, self._endpoint, timeout_s, client.api_key)
        raise failure  # out here it has no context, which could hold the key

    def _open_client(self) -> Any:
        """The openai client of this process; a fork gets one of its own."""
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                import openai  # late: it takes a second to import, and most runs need no model

                key = self._key()
                if self._api == "azure":
                    self._client = openai.AzureOpenAI(
                        azure_endpoint=str(self._base_url),
                        api_version=self._api_version,
                        api_key=key,
                        max_retries=0,
                    )
                else:
                    self._client = openai.OpenAI(base_url=self._base_url, api_key=key, max_retries=0)
                self._pid = os.getpid()
            return self._client

    def _key(self) -> str:
        key = self._api_key() if self._api_key is not None else os.environ.get(self._api_key_env)
        if key:
            return key
        if self._base_url is not None and urlsplit(self._base_url).hostname in _LOOPBACK:
            return "none"
        raise ConfigurationError(
            f"There is no key for {self._endpoint}: set the environment variable {self._api_key_env}, or "
            "name another with api_key_env."
        )


def _endpoint_name(base_url: str | None) -> str:
    """What tells endpoints apart: without user names, passwords and ports of this machine."""
    if base_url is None:
        return "openai"
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if host in _LOOPBACK:
        return "loopback"
    return f"{host}:{parts.port}{parts.path}" if parts.port else f"{host}{parts.path}"


def _check_address(base_url: Any, api: Any, api_version: Any) -> None:
    if base_url is not None:
        try:
            parts = urlsplit(base_url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except (AttributeError, TypeError, ValueError):
            usable = False
        if not usable:
            raise ConfigurationError(
                f"base_url is {base_url!r}: give an address such as http://HOST:PORT/v1."
            )
    if api not in ("openai", "azure"):
        raise ConfigurationError(f"api is {api!r}: choose openai or azure.")
    if api == "azure" and (base_url is None or not api_version):
        raise ConfigurationError("api=azure needs base_url and api_version.")


def _check_number(name: str, value: Any, *, above: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < 1e9:
        raise ConfigurationError(f"{name} is {value!r}: give a number above {above:g}.")


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} is {value!r}: give a whole number from {least}.")
