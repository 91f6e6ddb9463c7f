"""Replies kept in an SQLite file, so that a run can be repeated byte for byte and without a model."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from ceb_gym.chat.forking import renew_after_fork
from ceb_gym.chat.values import ChatChoice, ChatReply, ChatRequest
from ceb_gym.errors import ChatError, ConfigurationError, ReplyMissingError
from ceb_gym.types import TokenLogprob

CacheMode = Literal["off", "record", "replay"]
CACHE_MODES: tuple[CacheMode, ...] = ("off", "record", "replay")
_WAIT_S = 30.0
_SHOWN_CHARS = 80


class ReplyCache:
    """Replies by all that determines them: endpoint, model and request. Many processes may share one file.

    A connection is opened for each call: none is shared between threads or with a forked process.

    Args:
        path: The file; made where it is missing, except for replays.
        endpoint: Tells endpoints apart that serve different models under one name. Ports are left out, so
            that replies of a local server can be replayed whatever its port was.
    """

    def __init__(self, path: str | Path, endpoint: str, *, must_exist: bool = False) -> None:
        self._path = Path(path)
        self._endpoint = endpoint
        self.renew()
        renew_after_fork(self)
        if must_exist and not self._path.is_file():
            raise ConfigurationError(
                f"There are no replies to replay: {path} is no file. Record first with cache_mode=record."
            )
        with self._connection() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS reply (key TEXT PRIMARY KEY, model TEXT NOT NULL, "
                "request TEXT NOT NULL, reply TEXT NOT NULL, created_at REAL NOT NULL)"
            )

    def renew(self) -> None:
        """Writers of one process take turns: SQLite lets those that find the file locked sleep too long."""
        self._writing = threading.Lock()

    def find(self, model: str, request: ChatRequest) -> ChatReply | None:
        """Returns the kept reply, at no cost; None where there is none."""
        key, _ = self._key(model, request)
        with self._connection() as connection:
            row = connection.execute("SELECT reply FROM reply WHERE key = ?", (key,)).fetchone()
        return None if row is None else _decoded(json.loads(row[0]))

    def missing(self, model: str, request: ChatRequest) -> ReplyMissingError:
        """The error for a reply that a replay lacks; it names the request."""
        key, _ = self._key(model, request)
        words = " ".join(request.messages[-1].content.split()) if request.messages else ""
        shown = words if len(words) <= _SHOWN_CHARS else f"...{words[-_SHOWN_CHARS:]}"
        return ReplyMissingError(
            f"No reply of {model} is kept in {self._path.name} for request {key[:12]} ({shown!r}): "
            "record it with cache_mode=record, or replay with the settings it was recorded with."
        )

    def keep(self, model: str, request: ChatRequest, reply: ChatReply) -> ChatReply:
        """Keeps a reply unless there is one; returns the one that holds, with its own cost."""
        key, text = self._key(model, request)
        encoded = json.dumps({"choices": [asdict(c) for c in reply.choices], "usage": dict(reply.usage)})
        with self._writing, self._connection() as connection:
            added = connection.execute(
                "INSERT OR IGNORE INTO reply VALUES (?, ?, ?, ?, ?)", (key, model, text, encoded, time.time())
            )
            if added.rowcount:
                return reply
        found = self.find(model, request)
        return reply if found is None else ChatReply(found.choices, reply.usage, reply.notes)

    def _key(self, model: str, request: ChatRequest) -> tuple[str, str]:
        text = json.dumps({"endpoint": self._endpoint, "model": model, **asdict(request)}, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), text

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self._path, timeout=_WAIT_S)
            try:
                with connection:
                    yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise ChatError(f"The reply cache {self._path} cannot be used: {error}.") from error


def _decoded(value: dict[str, Any]) -> ChatReply:
    """The reply; its tokens were paid for when it was recorded, so that only their numbers are told."""
    choices = tuple(
        ChatChoice(
            choice["text"],
            choice["finish_reason"],
            None if choice["tokens"] is None else tuple(_token(token) for token in choice["tokens"]),
            choice["seed"],
        )
        for choice in value["choices"]
    )
    usage = {**value["usage"], "requests": 0.0, "seconds": 0.0}
    usage.pop("cost", None)
    return ChatReply(choices, usage, ("from the reply cache",))


def _token(value: dict[str, Any]) -> TokenLogprob:
    top = tuple((str(text), float(logprob)) for text, logprob in value["top"])
    return TokenLogprob(value["token"], value["logprob"], top, value["is_end"])
