"""A language model made of a function, and queries for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ceb_gym.chat.values import ChatChoice, ChatReply, ChatRequest
from ceb_gym.errors import ChatError
from ceb_gym.types import HistoryItem, Precedent, Precedents, Query, Record

USAGE = {"requests": 1.0, "prompt_tokens": 900.0, "completion_tokens": 20.0}


class FakeChat:
    """Answers by a function of the request: text, a choice, or an error in its place; keeps the requests."""

    model = "fake"

    def __init__(self, answer: Callable[[ChatRequest], Any] | str | ChatChoice | ChatError) -> None:
        self._answer = answer
        self.requests: list[ChatRequest] = []
        self.batches: list[int] = []

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        self.batches.append(len(requests))
        self.requests.extend(requests)
        return [self._reply(request) for request in requests]

    def _reply(self, request: ChatRequest) -> ChatReply | ChatError:
        answer = self._answer(request) if callable(self._answer) else self._answer
        if isinstance(answer, ChatError):
            return answer
        choice = answer if isinstance(answer, ChatChoice) else ChatChoice(str(answer), "stop")
        return ChatReply((choice,), USAGE)


QUERY = Query("bash", "scope", 0, "episode", "find big files", "$ ls\na b", "find . -size +1M", (), False, 0)


def item(place: int, **changes: Any) -> HistoryItem:
    return replace(HistoryItem(f"state {place}", f"act {place}", f"outcome {place}", True, 0.625), **changes)


def at_step(index: int, query: Query = QUERY, most: int = 16) -> Query:
    """The query with its newest `most` earlier steps, as a lane gives them."""
    history = tuple(item(place) for place in range(max(0, index - most), index))
    return replace(query, step_index=index, history=history)


def make_record(label: bool, place: int = 0, **changes: Any) -> Record:
    word = "good" if label else "bad"
    made = Record(
        record_id=f"{word}:{place}:1",
        scope="scope",
        episode_id=word,
        step_index=place,
        task=f"{word} task {place}",
        state=f"{word} state {place}",
        action=f"{word} action {place}",
        outcome=f"{word} outcome {place}",
        label=label,
        vote_share=float(label),
        votes=5,
        confidence=0.875,
        agrees=label,
        repeated=False,
        critic="openai:fake",
        labeler="openai:fake",
        created_at=0.0,
    )
    return replace(made, **changes)


def found(productive: int = 2, unproductive: int = 2) -> Precedents:
    return Precedents(
        tuple(Precedent(make_record(True, place), 0.9) for place in range(productive)),
        tuple(Precedent(make_record(False, place), 0.8) for place in range(unproductive)),
    )
