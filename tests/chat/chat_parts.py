"""A scripted endpoint on a real socket, and requests for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ceb_gym.chat.client import OpenAIChat
from ceb_gym.chat.values import ChatReply, ChatRequest, Message
from ceb_gym.errors import ChatError

SECRET = "sk-very-secret-0123456789"
PATH = "/v1/chat/completions"
Answer = Callable[[dict[str, Any]], Response]


def request(text: str = "hello", **changes: Any) -> ChatRequest:
    return ChatRequest((Message("user", text),), **changes)


def choice(content: Any = "fine", **changes: Any) -> dict[str, Any]:
    return {
        "index": 0,
        "message": {"role": "assistant", "content": content},
        "finish_reason": "stop",
        **changes,
    }


def reply(*choices: dict[str, Any], **changes: Any) -> Response:
    body: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion",
        "choices": list(choices) or [choice()],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
    }
    return Response(json.dumps({**body, **changes}), content_type="application/json")


def refusal(
    status: int, message: str = "no", headers: dict[str, str] | None = None, **error: Any
) -> Response:
    body = json.dumps({"error": {"message": message, "type": "e", **error}})
    return Response(body, status=status, content_type="application/json", headers=headers)


class Script:
    """Gives one answer after the other, the last one for ever, and keeps what was sent."""

    def __init__(self, server: HTTPServer, *answers: Response | Answer) -> None:
        self.sent: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._answers = list(answers)
        server.expect_request(PATH, method="POST").respond_with_handler(self._answer)

    def _answer(self, incoming: Request) -> Response:
        sent = json.loads(incoming.get_data())
        self.sent.append(sent)
        self.headers.append(dict(incoming.headers))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return answer(sent) if callable(answer) and not isinstance(answer, Response) else answer


def chat_with(server: HTTPServer, model: str, **options: Any) -> OpenAIChat:
    """Each test needs a model name of its own: what endpoints refuse is remembered by it."""
    return OpenAIChat(model, server.url_for("/v1"), **options)


def one(chat: OpenAIChat, **changes: Any) -> ChatReply:
    (answer,) = chat.complete([request(**changes)])
    assert isinstance(answer, ChatReply), answer
    return answer


def failure(chat: OpenAIChat, **changes: Any) -> ChatError:
    (answer,) = chat.complete([request(**changes)])
    assert isinstance(answer, ChatError), answer
    return answer
