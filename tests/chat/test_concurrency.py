from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from chat_parts import Answer, Script, chat_with, choice, one, refusal, reply, request
from pytest_httpserver import HTTPServer
from werkzeug import Response

from ceb_gym.chat.connection import Connection
from ceb_gym.chat.endpoint import Endpoint
from ceb_gym.chat.values import ChatReply
from ceb_gym.errors import ChatError


def counted_answer(wait_s: float) -> tuple[Callable[[], int], Answer]:
    """How many requests were answered at once at most, and the answer that counts them."""
    running, most, lock = 0, 0, threading.Lock()

    def answer(_: dict[str, Any]) -> Response:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(wait_s)
        with lock:
            running -= 1
        return reply()

    return lambda: most, answer


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
    most, answer = counted_answer(0.05)
    Script(server, answer)
    chat_with(server, model, concurrency=concurrency).complete([request(str(i)) for i in range(9)])
    assert most() == concurrency


def test_the_limit_holds_for_all_threads_together(server: HTTPServer, model: str) -> None:
    most, answer = counted_answer(0.02)
    Script(server, answer)
    chat = chat_with(server, model, concurrency=2)
    answers: list[ChatReply | ChatError] = []

    def ask(name: str) -> None:
        answers.extend(chat.complete([request(f"{name}{number}") for number in range(4)]))

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16 and all(isinstance(answer, ChatReply) for answer in answers)
    assert most() == 2


def test_answers_keep_the_order_of_the_requests(server: HTTPServer, model: str) -> None:
    def answer(sent: dict[str, Any]) -> Response:
        asked = sent["messages"][0]["content"]
        time.sleep(0.05 - int(asked) / 500)
        return reply(choice(asked))

    Script(server, answer)
    answers = chat_with(server, model).complete([request(str(number)) for number in range(20)])
    texts = [answer.choices[0].text for answer in answers if isinstance(answer, ChatReply)]
    assert texts == [str(number) for number in range(20)]


def test_no_request_makes_no_answer(server: HTTPServer, model: str) -> None:
    assert chat_with(server, model).complete([]) == []


def test_the_deadline_holds_while_waiting_for_a_turn(server: HTTPServer, model: str) -> None:
    inside, released = threading.Event(), threading.Event()

    def hold(_: dict[str, Any]) -> Response:
        inside.set()
        released.wait(10)
        return reply()

    script = Script(server, hold)
    connection = Connection(Endpoint(server.url_for("/v1"), None, "OPENAI_API_KEY"), model, 1)
    sent = {"messages": [{"role": "user", "content": "a"}]}
    started: list[str] = []

    def post(name: str, wait_s: float) -> None:
        connection.post(sent, 9.0, time.monotonic() + wait_s, lambda: started.append(name))

    thread = threading.Thread(target=post, args=("first", 9.0))
    thread.start()
    try:
        assert inside.wait(10)
        with pytest.raises(ChatError, match="was not asked before the deadline"):
            post("second", 0.2)
    finally:
        released.set()
        thread.join(10)
    assert started == ["first"] and len(script.sent) == 1
    connection.close()


def test_a_closed_client_opens_again(server: HTTPServer, model: str) -> None:
    Script(server, reply())
    chat = chat_with(server, model)
    chat.close()
    one(chat)
    chat.close()
    chat.close()
    assert one(chat).choices[0].text == "fine"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_in_the_middle_of_a_request_can_ask(server: HTTPServer, model: str) -> None:
    inside, released = threading.Event(), threading.Event()

    def answer(sent: dict[str, Any]) -> Response:
        if sent["messages"][0]["content"] == "slow":
            inside.set()
            released.wait(20)
        return reply()

    script = Script(server, answer)
    chat = chat_with(server, model, concurrency=1, deadline_s=20.0)
    slow: list[ChatReply | ChatError] = []
    thread = threading.Thread(target=lambda: slow.extend(chat.complete([request("slow")])))
    thread.start()
    assert inside.wait(10)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if isinstance(chat.complete([request("child")])[0], ChatReply) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    released.set()
    thread.join(20)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [type(answer) for answer in slow] == [ChatReply]
    assert [sent["messages"][0]["content"] for sent in script.sent] == ["slow", "child"]
