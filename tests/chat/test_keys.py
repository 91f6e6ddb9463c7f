from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from chat_parts import SECRET, Script, chat_with, choice, failure, one, refusal, reply
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ceb_gym.build.parts import make_critic
from ceb_gym.chat.client import OpenAIChat
from ceb_gym.errors import ConfigurationError


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


def shown_by(error: BaseException | None) -> str:
    """All that a traceback would print of an error and of what led to it."""
    return "" if error is None else "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"api_key": SECRET}, "no function"),
        ({"api_key_env": SECRET}, "no name of an environment variable"),
        ({"api_key_env": None}, "no name of an environment variable"),
        ({"base_url": f"https://user:{SECRET}@example.org/v1"}, "user name, a password or a query"),
        ({"base_url": f"https://{SECRET}@example.org:port/v1"}, "user name, a password or a query"),
        ({"base_url": f"https://example.org/v1?key={SECRET}"}, "user name, a password or a query"),
        ({"api_key": lambda: None}, "no text"),
        ({"api_key": lambda: f"{SECRET}\ninjected: yes"}, "no header"),
        ({"api_key": lambda: f"{SECRET}ä"}, "no header"),
    ],
)
def test_keys_in_the_wrong_place_are_refused_and_not_shown(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        OpenAIChat("m", **{"base_url": "https://example.org/v1", **options})
    assert SECRET not in shown_by(caught.value)


def test_a_key_function_that_fails_is_told_without_what_it_says() -> None:
    def broken() -> str:
        raise OSError(f"vault said {SECRET}")

    with pytest.raises(ConfigurationError, match="OSError") as caught:
        OpenAIChat("m", "https://example.org/v1", api_key=broken)
    assert SECRET not in shown_by(caught.value)


def test_a_key_in_a_spec_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="cannot be an option, since specs are stored") as caught:
        make_critic(f"openai:m?api_key={SECRET}")
    assert SECRET not in shown_by(caught.value)


def test_a_renewed_key_is_used_from_the_next_request_on(server: HTTPServer, model: str) -> None:
    script = Script(server, reply())
    keys = iter(["first", "second", "third\n", "third"])
    chat = chat_with(server, model, api_key=lambda: next(keys))  # one to check, one for each request
    one(chat)
    one(chat)
    one(chat)
    sent = [headers["Authorization"] for headers in script.headers]
    assert sent == ["Bearer second", "Bearer third", "Bearer third"]


def test_a_key_that_is_gone_fails_the_request_alone(
    server: HTTPServer, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(server, reply())
    keys = iter(["at first"])
    chat = chat_with(server, model, api_key=lambda: next(keys, ""))
    assert "no text" in str(failure(chat)) and script.sent == []


def test_a_refused_connection_does_not_show_the_key(model: str) -> None:
    answer = failure(OpenAIChat(model, "http://127.0.0.1:9/v1", api_key=lambda: SECRET, retries=0))
    assert SECRET not in shown_by(answer)


def test_azure_gets_its_own_header_and_address(server: HTTPServer, model: str) -> None:
    seen: list[Request] = []

    def answer(incoming: Request) -> Response:
        seen.append(incoming)
        return reply(choice("azure"))

    path = f"/openai/deployments/{model}/chat/completions"
    server.expect_request(path, method="POST").respond_with_handler(answer)
    chat = OpenAIChat(
        model, server.url_for("/"), api="azure", api_version="2024-10-21", api_key=lambda: SECRET
    )
    assert one(chat).choices[0].text == "azure"
    assert seen[0].headers["api-key"] == SECRET and seen[0].args["api-version"] == "2024-10-21"


def test_the_address_may_come_from_the_environment(
    server: HTTPServer, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url_for("/v1"))
    script = Script(server, reply())
    one(OpenAIChat(model))
    assert len(script.sent) == 1
