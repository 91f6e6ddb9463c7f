from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from chat_parts import Script, chat_with, choice, refusal, reply, request
from pytest_httpserver import HTTPServer
from werkzeug import Response

from ceb_gym.chat.client import OpenAIChat
from ceb_gym.chat.values import ChatReply
from ceb_gym.errors import BudgetError, ChatError, ConfigurationError, ReplyMissingError

SECRET = "sk-very-secret-0123456789"


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture(scope="session")
def running_server() -> Iterator[HTTPServer]:
    with HTTPServer(host="127.0.0.1", port=0, threaded=True) as running:
        yield running


@pytest.fixture
def server(running_server: HTTPServer) -> Iterator[HTTPServer]:
    yield running_server
    running_server.clear()


def one(chat: OpenAIChat, **changes: Any) -> ChatReply:
    (answer,) = chat.complete([request(**changes)])
    assert isinstance(answer, ChatReply), answer
    return answer


def failure(chat: OpenAIChat, **changes: Any) -> ChatError:
    (answer,) = chat.complete([request(**changes)])
    assert isinstance(answer, ChatError), answer
    return answer


def test_a_reply_carries_text_and_usage(server: HTTPServer, model: str) -> None:
    Script(server, reply(choice("yes")))
    answer = one(chat_with(server, model, prompt_price=1e6, completion_price=2e6))
    assert answer.choices[0].text == "yes" and answer.choices[0].finish_reason == "stop"
    usage = dict(answer.usage)
    assert usage.pop("seconds") > 0
    assert usage == {
        "requests": 1,
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "cached_tokens": 4,
        "cost": pytest.approx(14.0),
    }


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (Response("<html>Bad gateway</html>", content_type="text/html"), "no JSON"),
        (Response('{"choices": [', content_type="application/json"), "no JSON"),
        (Response("[]", content_type="application/json"), "no object"),
        (reply(choices=None), "without any choice"),
        (reply(choices=[]), "without any choice"),
        (reply(choices=None, error={"message": "overloaded"}), "overloaded"),
    ],
    ids=["html", "cut off", "list", "null choices", "no choices", "error in a 200"],
)
def test_odd_bodies_are_errors_that_say_so(server: HTTPServer, model: str, odd: Response, said: str) -> None:
    Script(server, odd)
    assert said in str(failure(chat_with(server, model)))


def test_null_content_is_an_empty_text(server: HTTPServer, model: str) -> None:
    Script(server, reply(choice(None, finish_reason="length")))
    answer = one(chat_with(server, model))
    assert answer.choices[0].text == "" and answer.choices[0].finish_reason == "length"


def test_a_refusal_of_the_model_is_told(server: HTTPServer, model: str) -> None:
    message = {"role": "assistant", "content": None, "refusal": "I cannot."}
    Script(server, reply({"message": message, "finish_reason": "stop"}))
    assert one(chat_with(server, model)).choices[0].finish_reason == "refusal"


def test_log_probabilities_that_are_null_or_infinite_are_none(server: HTTPServer, model: str) -> None:
    content = [
        {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}]},
        {"token": "b", "bytes": [98], "logprob": None, "top_logprobs": None},
        {"token": "c", "logprob": float("-inf"), "top_logprobs": [{"token": "d", "logprob": float("-inf")}]},
        {"token": "", "bytes": [], "logprob": -0.1, "top_logprobs": []},
    ]
    Script(server, reply(choice("abc", logprobs={"content": content})))
    tokens = one(chat_with(server, model), top_logprobs=2).choices[0].tokens
    assert tokens is not None
    assert [token.logprob for token in tokens] == [-0.5, None, None, -0.1]
    assert [token.is_end for token in tokens] == [False, False, False, True]
    assert tokens[0].top == (("a", -0.5),) and tokens[2].top == ()


@pytest.mark.parametrize(
    ("asked", "parameter", "error"),
    [
        ({"temperature": 0.7}, "temperature", {"param": "temperature", "code": "unsupported_value"}),
        ({"seed": 1}, "seed", {"message": "Unrecognized request argument supplied: seed"}),
        ({"top_logprobs": 3}, "logprobs", {"param": "logprobs", "code": "unsupported_parameter"}),
        ({"stop": ("x",)}, "stop", {"param": "stop", "code": "unsupported_parameter"}),
    ],
)
def test_a_refused_parameter_is_left_out_from_then_on(
    server: HTTPServer, model: str, asked: dict[str, Any], parameter: str, error: dict[str, Any]
) -> None:
    def answer(sent: dict[str, Any]) -> Response:
        return refusal(400, **error) if parameter in sent else reply()

    script = Script(server, answer)
    for _ in range(2):  # another client of the same endpoint and model knows it already
        reply_ = one(chat_with(server, model), **asked)
    assert [parameter in sent for sent in script.sent] == [True, False, False]
    assert parameter in reply_.notes[0]


def test_the_other_name_of_the_token_limit_is_tried(server: HTTPServer, model: str) -> None:
    said = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    script = Script(server, refusal(400, said, param="max_tokens", code="unsupported_parameter"), reply())
    one(chat_with(server, model), max_tokens=7)
    assert script.sent[1]["max_completion_tokens"] == 7 and "max_tokens" not in script.sent[1]


def test_json_modes_are_tried_from_strict_to_none(server: HTTPServer, model: str) -> None:
    refused = refusal(400, "response_format is not supported", param="response_format")
    script = Script(server, refused, refused, reply())
    one(chat_with(server, model), json_schema={"type": "object"})
    assert [sent.get("response_format", {}).get("type") for sent in script.sent] == [
        "json_schema",
        "json_object",
        None,
    ]


def test_fewer_alternatives_per_token_are_asked_for_before_none(server: HTTPServer, model: str) -> None:
    refused = refusal(400, "top_logprobs must be at most 5", param="top_logprobs")
    script = Script(server, refused, reply())
    one(chat_with(server, model), top_logprobs=20)
    assert script.sent[1]["top_logprobs"] == 5


@pytest.mark.parametrize(
    "said",
    [
        "Field 'n': Value must be between 1 <= value <= 4, but got 5",
        "n_cmpl cannot be greater than the number of slots, please increase -np",
    ],
)
def test_choices_refused_at_once_are_asked_for_singly_with_seeds_of_their_own(
    server: HTTPServer, model: str, said: str
) -> None:
    script = Script(server, lambda sent: refusal(400, said) if "n" in sent else reply())
    answer = one(chat_with(server, model + said[:3]), n=5, seed=40, temperature=0.7)
    assert len(answer.choices) == 5 and sorted(c.seed or 0 for c in answer.choices) == [40, 41, 42, 43, 44]
    assert len(script.sent) == 6 and answer.usage["requests"] == 6


def test_choices_that_were_not_given_are_asked_for_singly(server: HTTPServer, model: str) -> None:
    script = Script(server, reply(choice("one")))
    answer = one(chat_with(server, model), n=3, seed=1)
    assert len(answer.choices) == 3
    assert [sent.get("n", 1) for sent in script.sent] == [3, 1, 1]


def test_choices_that_fail_are_missing_and_the_others_are_kept(server: HTTPServer, model: str) -> None:
    Script(server, reply(), refusal(500))
    answer = one(chat_with(server, model, retries=0), n=3)
    assert len(answer.choices) == 1 and "2 of 3 choices are missing" in answer.notes[0]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503])
def test_passing_failures_are_tried_again(server: HTTPServer, model: str, status: int) -> None:
    script = Script(server, refusal(status, headers={"retry-after-ms": "1"}), reply())
    assert one(chat_with(server, model)).usage["requests"] == 2 == len(script.sent)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (429, "insufficient_quota"),
        (400, "content_filter"),
        (401, "invalid_api_key"),
        (404, "model_not_found"),
        (400, "other"),
    ],
)
def test_lasting_failures_are_tried_once(server: HTTPServer, model: str, status: int, code: str) -> None:
    script = Script(server, refusal(status, "never", code=code))
    assert str(status) in str(failure(chat_with(server, model)))
    assert len(script.sent) == 1


def test_the_wait_that_the_endpoint_asks_for_is_kept(server: HTTPServer, model: str) -> None:
    Script(server, refusal(429, headers={"Retry-After": "0.3"}), reply())
    started = time.monotonic()
    one(chat_with(server, model))
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize("wait", ["60", formatdate(time.time() + 3600, usegmt=True)], ids=["seconds", "date"])
def test_no_wait_goes_beyond_the_deadline(server: HTTPServer, model: str, wait: str) -> None:
    Script(server, refusal(429, headers={"Retry-After": wait}))
    started = time.monotonic()
    assert "beyond the deadline" in str(failure(chat_with(server, model, deadline_s=5.0)))
    assert time.monotonic() - started < 5


def test_a_silent_endpoint_is_left_at_the_deadline(server: HTTPServer, model: str) -> None:
    released = threading.Event()

    def silent(_: dict[str, Any]) -> Response:
        released.wait(10)
        return reply()

    Script(server, silent)
    started = time.monotonic()
    try:
        answer = failure(chat_with(server, model, timeout_s=0.2, deadline_s=0.5, retries=9))
    finally:
        released.set()
    assert time.monotonic() - started < 5
    assert "no answer" in str(answer) or "deadline" in str(answer)


def test_nobody_at_the_address_is_told(model: str) -> None:
    answer = failure(OpenAIChat(model, "http://127.0.0.1:9/v1", retries=0))
    assert "cannot be reached" in str(answer)


def test_one_failure_leaves_the_other_requests_alone(server: HTTPServer, model: str) -> None:
    def answer(sent: dict[str, Any]) -> Response:
        asked = sent["messages"][0]["content"]
        return refusal(404) if asked == "bad" else reply(choice(asked))

    Script(server, answer)
    answers = chat_with(server, model).complete([request("a"), request("bad"), request("c")])
    assert isinstance(answers[1], ChatError)
    texts = [answer.choices[0].text for answer in answers if isinstance(answer, ChatReply)]
    assert texts == ["a", "c"]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_requests_run_at_once_than_allowed(server: HTTPServer, model: str, concurrency: int) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def answer(_: dict[str, Any]) -> Response:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return reply()

    Script(server, answer)
    chat_with(server, model, concurrency=concurrency).complete([request(str(i)) for i in range(9)])
    assert most == concurrency


def test_a_spent_budget_makes_no_further_request(server: HTTPServer, model: str) -> None:
    script = Script(server, reply())
    chat = chat_with(server, model, max_requests=2)
    answers = [chat.complete([request()])[0] for _ in range(4)]
    assert [isinstance(answer, BudgetError) for answer in answers] == [False, False, True, True]
    assert len(script.sent) == 2


def test_a_budget_of_tokens_stops_after_they_are_used(server: HTTPServer, model: str) -> None:
    Script(server, reply())
    chat = chat_with(server, model, max_total_tokens=20)
    assert isinstance(chat.complete([request()])[0], ChatReply)
    assert isinstance(chat.complete([request()])[0], ChatReply)
    assert "20 tokens is spent" in str(failure(chat))


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


def test_the_key_is_sent_and_shown_nowhere(
    server: HTTPServer, model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    script = Script(server, refusal(401, f"Incorrect API key provided: {SECRET}"), reply())
    path = tmp_path / "replies.db"
    chat = chat_with(server, model, api_key=lambda: SECRET, cache=path, cache_mode="record")
    answer = failure(chat)
    one(chat)
    assert script.headers[0]["Authorization"] == f"Bearer {SECRET}"
    shown = [repr(chat), str(answer), repr(answer.__cause__), repr(answer.__context__), caplog.text]
    assert not any(SECRET in text for text in shown)
    assert SECRET.encode() not in path.read_bytes()


def test_the_key_comes_from_the_named_variable(
    server: HTTPServer, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    script = Script(server, reply())
    one(chat_with(server, model, api_key_env="MY_KEY"))
    assert script.headers[0]["Authorization"] == f"Bearer {SECRET}"


def test_a_remote_endpoint_without_a_key_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        OpenAIChat("gpt")


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"deadline_s": float("nan")},
        {"retries": -1},
        {"retries": True},
        {"concurrency": 0},
        {"cache": "x"},
        {"cache_mode": "record"},
        {"cache_mode": "always", "cache": "x"},
        {"cache_mode": "replay", "cache": "no-such-file"},
        {"max_requests": -1},
        {"max_cost": 1},
        {"api": "azure"},
        {"api": "other"},
        {"base_url": "ftp://127.0.0.1"},
        {"base_url": "127.0.0.1:80"},
        {"base_url": 3},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        OpenAIChat("model", **{"base_url": "http://127.0.0.1:9/v1", **options})
