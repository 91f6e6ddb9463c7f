"""The client with SmolLM2-135M on loopback: counts, seeds, log probabilities, JSON; never its judgement."""

from __future__ import annotations

import math
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ceb_gym.chat.client import OpenAIChat
from ceb_gym.chat.reading import first_json_object
from ceb_gym.chat.values import ChatReply, ChatRequest, Message
from ceb_gym.errors import ChatError
from ceb_gym.testing.local_model import local_model_server, missing_local_model

QUESTION = "Name one command that lists files."
SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}}, "required": ["score"]}


def asked(**changes: Any) -> ChatRequest:
    return ChatRequest((Message("user", QUESTION),), **{"max_tokens": 12, **changes})


def answered(url: str, wanted: ChatRequest, model: str = "smollm2", **options: Any) -> ChatReply:
    chat = OpenAIChat(model, url, concurrency=1, **options)
    (answer,) = chat.complete([wanted])
    chat.close()
    assert isinstance(answer, ChatReply), answer
    return answer


def test_one_request_gives_all_choices(model_url: str) -> None:
    answer = answered(model_url, asked(n=3, temperature=0.9, seed=7))
    assert len(answer.choices) == 3 and answer.usage["requests"] == 1 and answer.notes == ()
    assert len({choice.text for choice in answer.choices}) > 1
    assert answer.usage["prompt_tokens"] > 5 and answer.usage["seconds"] > 0


def test_more_choices_than_slots_are_topped_up_with_seeds_of_their_own(model_url: str) -> None:
    answer = answered(model_url, asked(n=7, temperature=0.9, seed=7, max_tokens=4), model="smollm2-many")
    assert sorted(choice.seed or 0 for choice in answer.choices) == list(range(7, 14))
    assert answer.usage["requests"] == 8 and "does not take n" in answer.notes[0]
    assert len({choice.text for choice in answer.choices}) > 1


def test_a_seed_repeats_its_reply_and_another_does_not(model_url: str) -> None:
    texts = [
        answered(model_url, asked(temperature=1.0, seed=seed, max_tokens=20)).choices[0].text
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_log_probabilities_come_with_each_token(model_url: str) -> None:
    (choice,) = answered(model_url, asked(top_logprobs=5)).choices
    assert choice.tokens is not None and 1 < len(choice.tokens) <= 12
    for token in choice.tokens:
        assert token.logprob is not None and token.logprob <= 1e-6
        assert len(token.top) == 5 and math.fsum(math.exp(logprob) for _, logprob in token.top) <= 1.0001
    assert "".join(token.token for token in choice.tokens if not token.is_end).startswith(choice.text)


@pytest.mark.parametrize("wanted", [None, 0])
def test_log_probabilities_come_as_far_as_asked_for(model_url: str, wanted: int | None) -> None:
    (choice,) = answered(model_url, asked(top_logprobs=wanted)).choices
    if wanted is None:
        assert choice.tokens is None
    else:
        assert choice.tokens and all(token.logprob is not None for token in choice.tokens)


def test_a_schema_gives_an_object_with_its_field(model_url: str) -> None:
    (choice,) = answered(model_url, asked(json_schema=SCHEMA, max_tokens=60)).choices
    found = first_json_object(choice.text, "score")
    assert (found is None) == (choice.finish_reason == "length")
    assert found is None or isinstance(found["score"], int | float)


def test_a_prompt_beyond_the_context_is_told_after_one_request(model_url: str) -> None:
    chat = OpenAIChat("smollm2", model_url, concurrency=1)
    (answer,) = chat.complete([ChatRequest((Message("user", "word " * 9_000),), max_tokens=4)])
    assert isinstance(answer, ChatError) and "context" in str(answer)
    assert chat.budget.used["requests"] == 1


def test_a_recorded_session_is_replayed_without_the_server(model_url: str, tmp_path: Path) -> None:
    cache = tmp_path / "replies.db"
    wanted = asked(n=2, temperature=0.8, seed=3, top_logprobs=2)
    recorded = answered(model_url, wanted, cache=cache, cache_mode="record")
    replayed = answered("http://127.0.0.1:9/v1", wanted, cache=cache, cache_mode="replay")
    assert replayed.choices == recorded.choices and replayed.usage["requests"] == 0


def test_the_server_ends_with_its_block() -> None:
    missing = missing_local_model()
    if missing is not None and os.environ.get("CI") != "true":
        pytest.skip(missing)
    with local_model_server(slots=1, context_tokens=256) as url:
        address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
        socket.create_connection(address, timeout=5).close()
    with pytest.raises(OSError):
        socket.create_connection(address, timeout=5).close()
