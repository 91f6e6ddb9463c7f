from __future__ import annotations

from typing import Any

import pytest
from chat_parts import Script, chat_with, choice, failure, one, refusal, reply, request
from pytest_httpserver import HTTPServer
from werkzeug import Response

from ceb_gym.chat.values import ChatReply
from ceb_gym.errors import ChatError


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


def test_a_part_of_a_parameter_is_the_parameter(server: HTTPServer, model: str) -> None:
    refused = refusal(400, "Invalid schema", param="response_format.json_schema.schema")
    script = Script(server, refused, reply())
    one(chat_with(server, model), json_schema={"type": "object"})
    assert script.sent[1]["response_format"] == {"type": "json_object"}


def test_refusals_of_the_request_itself_change_nothing_for_later(server: HTTPServer, model: str) -> None:
    too_long = "max_tokens is too large: the model's maximum context length is 4096 tokens"
    script = Script(server, refusal(400, too_long), refusal(400, too_long), reply())
    assert "maximum context length" in str(failure(chat_with(server, model), max_tokens=9_999))
    one(chat_with(server, model))
    assert "max_tokens" in script.sent[2] and len(script.sent) == 3


def test_a_prompt_that_is_too_long_is_told_after_one_request(server: HTTPServer, model: str) -> None:
    said = "the request exceeds the available context size, reduce the length of the messages"
    script = Script(server, refusal(400, said, type="exceed_context_size_error"))
    assert "context size" in str(failure(chat_with(server, model)))
    assert len(script.sent) == 1


def test_what_one_model_refuses_is_still_asked_of_another(server: HTTPServer, model: str) -> None:
    script = Script(server, lambda sent: refusal(400, param="seed") if sent["model"] == model else reply())
    failure_, reply_ = (
        chat_with(server, name).complete([request(seed=1, temperature=t)])[0]
        for name, t in ((model, 0.0), (model + "-other", 0.0))
    )
    assert isinstance(failure_, ChatError) and isinstance(reply_, ChatReply)
    assert "seed" in script.sent[-1]


def test_refusals_of_several_parameters_are_all_learned(server: HTTPServer, model: str) -> None:
    def answer(sent: dict[str, Any]) -> Response:
        for name in ("seed", "temperature", "top_logprobs", "logprobs", "response_format", "n"):
            if name in sent:
                return refusal(400, param=name, code="unsupported_parameter")
        return reply()

    script = Script(server, answer)
    asked = {"seed": 1, "temperature": 0.7, "n": 2, "top_logprobs": 20, "json_schema": {"type": "object"}}
    answers = [one(chat_with(server, model), **asked) for _ in range(2)]
    assert all(len(answer.choices) == 2 for answer in answers)
    assert answers[0].usage["requests"] > 2 == answers[1].usage["requests"]
    assert set(script.sent[-1]) == {"model", "messages", "max_tokens"}


def test_choices_without_a_seed_are_topped_up_without_one(server: HTTPServer, model: str) -> None:
    script = Script(server, reply())
    answer = one(chat_with(server, model), n=3)
    assert [c.seed for c in answer.choices] == [None] * 3 and not any("seed" in sent for sent in script.sent)


def test_more_choices_than_asked_for_are_cut(server: HTTPServer, model: str) -> None:
    Script(server, reply(choice("a"), choice("b"), choice("c")))
    assert [c.text for c in one(chat_with(server, model), n=2).choices] == ["a", "b"]
