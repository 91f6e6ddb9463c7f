"""Sends requests to one endpoint through the openai package, no more at once than allowed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ceb_gym.chat.endpoint import Endpoint
from ceb_gym.chat.failures import Retry, refusal_of
from ceb_gym.chat.forking import renew_after_fork
from ceb_gym.errors import ChatError, ConfigurationError

_of_parents: list[
    Any
] = []  # clients of before a fork: to collect them would close, and could wait for a lock
_MOST_BYTES = 64_000_000  # far above any reply: the body of an endpoint that never stops


class Connection:
    """One endpoint, for any number of threads. A forked child connects anew.

    Args:
        endpoint: Where to.
        model: Its name there.
        concurrency: Most requests at once.
    """

    def __init__(self, endpoint: Endpoint, model: str, concurrency: int) -> None:
        self._endpoint, self._model, self._concurrency = endpoint, model, concurrency
        self._client: Any = None
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forgets the client and who waits."""
        if self._client is not None:
            _of_parents.append(self._client)
        self._client = None
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self._concurrency)

    def close(self) -> None:
        """Closes connections; a later request opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def post(self, sent: dict[str, Any], timeout_s: float, deadline: float, start: Callable[[], None]) -> str:
        """Sends one request and returns the body of the reply.

        Args:
            sent: Its parameters without the model.
            timeout_s: From its start to the last byte.
            deadline: On the monotonic clock; waiting for other requests counts.
            start: Called when it is about to be sent; what it raises keeps it from being sent.

        Raises:
            Refusal: If the endpoint does not take it as it is.
            Retry: If it may succeed later.
            ChatError: If it failed for good, or its turn did not come.
        """
        late = ChatError(
            f"{self._model} was not asked before the deadline, since other requests took all the time: "
            "raise deadline_s, or concurrency where the endpoint serves more at once."
        )
        if not self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise late
        try:
            limit_s = min(timeout_s, deadline - time.monotonic())
            if limit_s <= 0:
                raise late
            start()
            return self._body(sent, limit_s)
        finally:
            self._slots.release()

    def _body(self, sent: dict[str, Any], limit_s: float) -> str:
        until = time.monotonic() + limit_s
        key = self._key()
        try:
            completions = self._open_client(key).chat.completions
            with completions.with_streaming_response.create(
                model=self._model, timeout=limit_s, **sent
            ) as response:
                return self._read(response, until, limit_s)
        except (Retry, ChatError):
            raise
        except Exception as error:
            failure = refusal_of(error, self._model, self._endpoint.name, limit_s, key)
        raise failure  # out here it has no context, which could hold the key

    def _read(self, response: Any, until: float, limit_s: float) -> str:
        """Reads piece by piece: the client times out for each, and some endpoints send blanks without end."""
        pieces, size = [], 0
        for piece in response.iter_bytes():
            pieces.append(piece)
            size += len(piece)
            if time.monotonic() > until:
                raise Retry(f"{self._model} gave no complete answer in {limit_s:.3g} s.")
            if size > _MOST_BYTES:
                raise ChatError(f"{self._endpoint.name} sent more than {_MOST_BYTES} bytes for one request.")
        return b"".join(pieces).decode("utf-8", "replace")

    def _key(self) -> str:
        try:
            return self._endpoint.key()
        except ConfigurationError as error:
            raise ChatError(str(error)) from None

    def _open_client(self, key: str) -> Any:
        """The openai client; its own retries are off, since those know no deadline and no budget."""
        import openai  # late: it takes most of a second to import, and most runs need no model

        with self._lock:
            if self._client is None:
                base_url = self._endpoint.base_url
                if self._endpoint.api == "azure":
                    self._client = openai.AzureOpenAI(
                        azure_endpoint=str(base_url),
                        api_version=self._endpoint.api_version,
                        api_key=key,
                        max_retries=0,
                    )
                else:
                    self._client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
            if self._client.api_key != key:
                return self._client.with_options(api_key=key)  # over the same connections
            return self._client
