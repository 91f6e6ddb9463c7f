from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest
from chat_parts import Script, chat_with, choice, failure, one, refusal, reply
from pytest_httpserver import HTTPServer
from werkzeug import Response

from ceb_gym.chat.client import OpenAIChat


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


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retries_are_bounded(server: HTTPServer, model: str, retries: int) -> None:
    script = Script(server, refusal(503, headers={"retry-after-ms": "1"}))
    assert f"after {retries + 1} attempts" in str(failure(chat_with(server, model, retries=retries)))
    assert len(script.sent) == retries + 1


@pytest.mark.parametrize("wait", ["soon", "-3", "nan", ""])
def test_a_wait_that_makes_no_sense_is_not_kept(server: HTTPServer, model: str, wait: str) -> None:
    script = Script(server, refusal(429, headers={"Retry-After": wait}), reply())
    one(chat_with(server, model, deadline_s=10.0))
    assert len(script.sent) == 2


def test_an_endpoint_that_asks_for_no_retry_gets_none(server: HTTPServer, model: str) -> None:
    script = Script(server, refusal(500, headers={"x-should-retry": "false"}))
    failure(chat_with(server, model))
    assert len(script.sent) == 1


def test_a_spent_quota_is_told_by_its_type_too(server: HTTPServer, model: str) -> None:
    script = Script(server, refusal(429, "You exceeded your quota", type="insufficient_quota"))
    assert "insufficient_quota" in str(failure(chat_with(server, model)))
    assert len(script.sent) == 1


def test_errors_that_are_no_json_are_shortened(server: HTTPServer, model: str) -> None:
    Script(server, Response("<html>" + "x" * 10_000, status=502, content_type="text/html"))
    said = str(failure(chat_with(server, model, retries=0)))
    assert "502" in said and len(said) < 600


def test_a_body_that_trickles_in_is_left_at_the_deadline(server: HTTPServer, model: str) -> None:
    def trickle(_: dict[str, Any]) -> Response:
        def blanks() -> Iterator[bytes]:
            for _ in range(100):
                time.sleep(0.05)
                yield b" "

        return Response(blanks(), content_type="application/json")

    Script(server, trickle)
    started = time.monotonic()
    said = str(failure(chat_with(server, model, timeout_s=9.0, deadline_s=0.4)))
    assert time.monotonic() - started < 2 and "no complete answer" in said


def test_blanks_before_an_answer_are_no_harm(server: HTTPServer, model: str) -> None:
    body = reply(choice("late")).get_data()
    Script(server, Response(b" \n" * 1000 + body, content_type="application/json"))
    assert one(chat_with(server, model)).choices[0].text == "late"


def test_an_answer_that_breaks_off_is_tried_again(model: str) -> None:
    whole = reply(choice("whole")).get_data()
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for body in (whole[:40], whole):
                with listening.accept()[0] as connection:
                    connection.recv(65_536)
                    connection.sendall(head % len(whole) + body)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        answer = one(OpenAIChat(model, f"http://127.0.0.1:{listening.getsockname()[1]}/v1"))
        thread.join(5)
    assert answer.choices[0].text == "whole" and answer.usage["requests"] == 2
