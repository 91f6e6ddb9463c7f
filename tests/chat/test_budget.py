from __future__ import annotations

from pathlib import Path

import pytest
from chat_parts import Script, chat_with, choice, failure, one, refusal, reply, request
from pytest_httpserver import HTTPServer

from ceb_gym.chat.values import ChatReply
from ceb_gym.errors import BudgetError


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


def test_a_budget_of_requests_is_exact_for_any_number_of_threads(server: HTTPServer, model: str) -> None:
    script = Script(server, reply())
    chat = chat_with(server, model, max_requests=5, concurrency=8)
    answers = chat.complete([request(str(number)) for number in range(20)])
    assert len(script.sent) == 5 == chat.budget.used["requests"]
    assert sum(isinstance(answer, ChatReply) for answer in answers) == 5
    assert sum(isinstance(answer, BudgetError) for answer in answers) == 15


def test_retries_and_single_choices_count(server: HTTPServer, model: str) -> None:
    Script(server, refusal(500, headers={"retry-after-ms": "1"}), reply())
    chat = chat_with(server, model, max_requests=3, concurrency=1)
    answer = one(chat, n=4)
    assert len(answer.choices) == 2 and "requests is spent" in answer.notes[0]


def test_a_budget_of_money_stops_after_it_is_used(server: HTTPServer, model: str) -> None:
    script = Script(server, reply())
    chat = chat_with(server, model, max_cost=20, prompt_price=1e6, completion_price=2e6)
    assert one(chat).usage["cost"] == pytest.approx(14) and one(chat).usage["cost"] == pytest.approx(14)
    assert "20 cost is spent" in str(failure(chat))
    assert len(script.sent) == 2 and chat.budget.used["cost"] == pytest.approx(28)


def test_a_budget_is_spent_also_where_the_endpoint_tells_no_usage(server: HTTPServer, model: str) -> None:
    Script(server, reply(choice("some words"), usage=None))
    chat = chat_with(server, model, max_total_tokens=5)
    answers = [chat.complete([request("three words here")])[0] for _ in range(2)]
    assert [type(answer) for answer in answers] == [ChatReply, BudgetError]


def test_an_empty_budget_makes_no_request(server: HTTPServer, model: str) -> None:
    script = Script(server, reply())
    assert isinstance(failure(chat_with(server, model, max_requests=0)), BudgetError)
    assert script.sent == []


def test_kept_replies_cost_nothing(server: HTTPServer, model: str, tmp_path: Path) -> None:
    Script(server, reply())
    options = {"cache": tmp_path / "replies.db", "cache_mode": "record", "max_requests": 1}
    chat = chat_with(server, model, **options)
    one(chat)
    assert one(chat).usage["requests"] == 0 and "cost" not in one(chat).usage
    assert chat.budget.used["requests"] == 1
