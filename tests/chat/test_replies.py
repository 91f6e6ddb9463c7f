from __future__ import annotations

from typing import Any

import pytest
from chat_parts import Script, chat_with, choice, failure, one, reply
from pytest_httpserver import HTTPServer
from werkzeug import Response


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
    ("odd", "text"),
    [
        ({"message": None}, ""),
        ({"message": "plain"}, ""),
        ({"message": {"content": 7}}, ""),
        ({"message": {"content": "a\x00b\ud800"}}, "a\ufffdb\ufffd"),
        (
            {
                "message": {
                    "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "yes"}]
                }
            },
            "yes",
        ),
        ({"message": {"content": "yes"}, "finish_reason": None, "logprobs": {"content": [None, {}]}}, "yes"),
        ({"message": {"content": " \n" * 5000}, "finish_reason": "length"}, " \n" * 5000),
    ],
    ids=["null message", "text message", "number", "unstorable", "parts", "null logprobs", "endless blanks"],
)
def test_odd_choices_are_read_as_far_as_they_go(
    server: HTTPServer, model: str, odd: dict[str, Any], text: str
) -> None:
    Script(server, reply(odd))
    assert one(chat_with(server, model), top_logprobs=0).choices[0].text == text


def test_a_choice_that_is_null_is_empty(server: HTTPServer, model: str) -> None:
    Script(server, reply(choices=[None]))
    assert one(chat_with(server, model)).choices[0].text == ""


def test_a_filtered_reply_keeps_its_reason(server: HTTPServer, model: str) -> None:
    Script(server, reply(choice("", finish_reason="content_filter")))
    assert one(chat_with(server, model)).choices[0].finish_reason == "content_filter"


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        {},
        {"prompt_tokens": None},
        {"prompt_tokens": -5, "completion_tokens": "2"},
        {"prompt_tokens": 10**400},
    ],
    ids=["null", "list", "empty", "null number", "negative", "huge"],
)
def test_missing_usage_is_estimated_and_said(server: HTTPServer, model: str, usage: Any) -> None:
    Script(server, reply(choice("four words are here"), usage=usage))
    answer = one(chat_with(server, model), text="three words here")
    assert answer.usage["prompt_tokens"] == 3 and answer.usage["completion_tokens"] == 4
    assert "estimated" in answer.notes[0]


def test_usage_that_was_told_is_not_estimated(server: HTTPServer, model: str) -> None:
    Script(server, reply())
    assert one(chat_with(server, model)).notes == ()
