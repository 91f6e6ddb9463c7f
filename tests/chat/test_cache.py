from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_parts import Script, chat_with, choice, failure, one, refusal, reply, request
from pytest_httpserver import HTTPServer

from ceb_gym.chat.client import OpenAIChat
from ceb_gym.chat.values import ChatReply
from ceb_gym.errors import ChatError, ReplyMissingError


def test_a_recorded_reply_is_replayed_without_a_request(
    server: HTTPServer, model: str, tmp_path: Path
) -> None:
    path = tmp_path / "replies.db"
    script = Script(server, reply(choice("kept", logprobs={"content": [{"token": "k", "logprob": -1.0}]})))
    recorded = one(chat_with(server, model, cache=path, cache_mode="record"), top_logprobs=1)
    again = one(chat_with(server, model, cache=path, cache_mode="record"), top_logprobs=1)
    replayed = one(
        OpenAIChat(model, "http://127.0.0.1:9/v1", cache=path, cache_mode="replay"), top_logprobs=1
    )
    assert recorded.choices == again.choices == replayed.choices
    assert recorded.usage["requests"] == 1 and replayed.usage["requests"] == 0 == again.usage["requests"]
    assert len(script.sent) == 1


@pytest.mark.parametrize(
    "changes",
    [{"temperature": 0.5}, {"seed": 3}, {"n": 2}, {"max_tokens": 9}, {"text": "other"}, {"stop": ("x",)}],
)
def test_a_request_that_differs_in_anything_is_missing_from_a_replay(
    server: HTTPServer, model: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / "replies.db"
    Script(server, reply())
    one(chat_with(server, model, cache=path, cache_mode="record"))
    answer = failure(chat_with(server, model, cache=path, cache_mode="replay"), **changes)
    assert isinstance(answer, ReplyMissingError) and model in str(answer)
    assert isinstance(
        chat_with(server, model + "2", cache=path, cache_mode="replay").complete([request()])[0],
        ReplyMissingError,
    )


def test_failures_are_not_kept(server: HTTPServer, model: str, tmp_path: Path) -> None:
    Script(server, refusal(404), reply())
    chat = chat_with(server, model, cache=tmp_path / "replies.db", cache_mode="record")
    failure(chat)
    assert one(chat).choices[0].text == "fine"


def test_a_file_that_is_no_cache_is_named(server: HTTPServer, model: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, but long enough to be looked at " * 20)
    with pytest.raises(ChatError, match="text cannot be used"):
        chat_with(server, model, cache=tmp_path / "text", cache_mode="record")


def test_replies_that_lack_choices_are_not_kept(server: HTTPServer, model: str, tmp_path: Path) -> None:
    Script(server, reply(), refusal(404), reply())
    chat = chat_with(server, model, cache=tmp_path / "replies.db", cache_mode="record")
    assert len(one(chat, n=2).choices) == 1
    assert len(one(chat, n=2).choices) == 2


def test_a_missing_reply_is_named(server: HTTPServer, model: str, tmp_path: Path) -> None:
    path = tmp_path / "replies.db"
    Script(server, reply())
    one(chat_with(server, model, cache=path, cache_mode="record"))
    asked = "is rm -rf productive?"
    said = str(failure(chat_with(server, model, cache=path, cache_mode="replay"), text=asked))
    assert model in said and asked in said and "replies.db" in said
    assert re.search(r"\b[0-9a-f]{12}\b", said)


def test_replays_are_equal_to_the_last_bit(server: HTTPServer, model: str, tmp_path: Path) -> None:
    logprob, text = -0.1234567890123456789, "Größe \u2028 \U0001f600 \t"
    top = [{"token": " a", "logprob": logprob}, {"token": "b", "logprob": -1e-300}]
    content = [{"token": " a", "bytes": [32, 97], "logprob": logprob, "top_logprobs": top}]
    Script(server, reply(choice(text, logprobs={"content": content}), choice("b", finish_reason=None)))
    path = tmp_path / "replies.db"
    asked: dict[str, Any] = {"n": 2, "seed": 5, "top_logprobs": 2, "json_schema": {"type": "object"}}
    recorded = one(chat_with(server, model, cache=path, cache_mode="record"), **asked)
    replayed = one(chat_with(server, model, cache=path, cache_mode="replay"), **asked)
    assert replayed.choices == recorded.choices and recorded.choices[0].text == text
    assert replayed.usage["prompt_tokens"] == recorded.usage["prompt_tokens"]


def test_a_replay_needs_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "replies.db"
    OpenAIChat("m", "https://example.org/v1", api_key=lambda: "k", cache=path, cache_mode="record")
    replaying = OpenAIChat("m", "https://example.org/v1", cache=path, cache_mode="replay")
    assert isinstance(failure(replaying), ReplyMissingError)


_RECORD = """
import sys
from ceb_gym.chat.client import OpenAIChat
from ceb_gym.chat.values import ChatRequest, Message
model, url, path = sys.argv[1:]
chat = OpenAIChat(model, url, cache=path, cache_mode="record")
requests = [ChatRequest((Message("user", str(number)),)) for number in range(40)]
print([answer.choices[0].text for answer in chat.complete(requests)])
"""


def test_processes_that_record_at_once_hold_the_same_replies(
    server: HTTPServer, model: str, tmp_path: Path
) -> None:
    counter = itertools.count()
    script = Script(server, lambda sent: reply(choice(f"reply {next(counter)}")))
    path = tmp_path / "replies.db"
    command = [sys.executable, "-c", _RECORD, model, server.url_for("/v1"), str(path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=120)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    replaying = chat_with(server, model, cache=path, cache_mode="replay")
    kept = replaying.complete([request(str(number)) for number in range(40)])
    texts = str([answer.choices[0].text for answer in kept if isinstance(answer, ChatReply)])
    assert said == [texts] * 3 and 40 <= len(script.sent) <= 120
