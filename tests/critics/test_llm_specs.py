"""Critics that ask a language model, built from spec strings, against endpoints on a real socket."""

from __future__ import annotations

import json
import socket
from typing import Any, ClassVar

import gymnasium as gym
import pytest
from llm_parts import QUERY, found
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ceb_gym import ConfidenceWrapper
from ceb_gym.build.parts import CRITICS, make_critic
from ceb_gym.errors import ConfigurationError, CriticError
from ceb_gym.types import Precedents

NAMES = ("openai", "static", "cot", "p_true")
BY_NAME = pytest.mark.parametrize("name", NAMES)


class Shell(gym.Env[str, str]):
    """Three steps of text; the reward is a level that rises with the first."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self) -> None:
        letters = frozenset(map(chr, range(32, 127)))
        self.observation_space = gym.spaces.Text(200, min_length=0, charset=letters)
        self.action_space = gym.spaces.Text(200, min_length=0, charset=letters)
        self._steps = 0

    def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=arguments.get("seed"))
        self._steps = 0
        return "$", {"task": "list the files"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return f"$ {action} gave line {self._steps}", 0.5, self._steps == 3, False, {"task": "list the files"}


def completion(content: str) -> dict[str, Any]:
    logprobs = {
        "content": [
            {
                "token": "True",
                "logprob": -0.25,
                "bytes": [84],
                "top_logprobs": [
                    {"token": "True", "logprob": -0.25, "bytes": [84]},
                    {"token": "False", "logprob": -1.75, "bytes": [70]},
                ],
            }
        ]
    }
    message = {"role": "assistant", "content": content}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message, "logprobs": logprobs}],
        "usage": {"prompt_tokens": 900, "completion_tokens": 12, "total_tokens": 912},
    }


@pytest.fixture
def endpoint(httpserver: HTTPServer) -> str:
    def answer(request: Request) -> Response:
        text = json.dumps(json.loads(request.data)["messages"])
        if "broken" in text:
            return Response("{}", status=400, content_type="application/json")
        content = '{"reasoning": "so", "rationale": "so", "score": 0.75}'
        return Response(json.dumps(completion(content)), content_type="application/json")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(answer)
    return httpserver.url_for("/v1")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-key")


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@BY_NAME
def test_spec_builds_a_critic_that_asks_its_endpoint(name: str, endpoint: str) -> None:
    critic = make_critic(f"{name}:tiny?base_url={endpoint}&timeout_s=5&retries=0")
    (verdict,) = critic.judge([QUERY], [Precedents()])
    assert critic.name == verdict.source == f"{name}:tiny"
    assert verdict.confidence is not None and 0.0 <= verdict.confidence <= 1.0
    assert verdict.usage["prompt_tokens"] == 900 and verdict.usage["requests"] == 1


def test_options_of_chat_and_critic_go_each_their_way(endpoint: str, httpserver: HTTPServer) -> None:
    critic = make_critic(f"openai:tiny?base_url={endpoint}&k=1&score_range=paper&max_tokens=77&timeout_s=5")
    assert critic.k == 1
    critic.judge([QUERY], [found()])
    body = json.loads(httpserver.log[-1][0].data)
    assert 77 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert body["model"] == "tiny"
    text = body["messages"][1]["content"]
    assert text.count("Productive precedent") == 1


def test_key_goes_to_the_endpoint_and_is_shown_nowhere_else(endpoint: str, httpserver: HTTPServer) -> None:
    critic = make_critic(f"openai:tiny?base_url={endpoint}")
    (verdict,) = critic.judge([QUERY], [Precedents()])
    assert httpserver.log[-1][0].headers["Authorization"] == "Bearer sk-test-key"
    assert "sk-test-key" not in repr(critic) + critic.name + repr(verdict)


@BY_NAME
def test_unknown_option_names_those_of_critic_and_chat(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no option 'tempo': it takes .*max_prompt_tokens.*base_url"
    ):
        make_critic(f"{name}:tiny?tempo=3")


@BY_NAME
def test_spec_without_a_model_says_so(name: str) -> None:
    with pytest.raises(ConfigurationError, match="needs model"):
        make_critic(name)


def test_model_names_with_a_colon_or_of_digits_are_kept() -> None:
    assert make_critic("openai:qwen2.5:7b?k=1").name == "openai:qwen2.5:7b"
    assert make_critic("static:4").name == "static:4"


@pytest.mark.parametrize("on_error", ["raise", "unscored", "constant:0.25"])
def test_endpoint_that_is_not_there_ends_as_on_critic_error_says(on_error: str, closed_port: int) -> None:
    spec = f"openai:tiny?base_url=http://127.0.0.1:{closed_port}/v1&retries=0&timeout_s=2"
    env = ConfidenceWrapper(Shell(), critic=spec, learn="off", on_critic_error=on_error)
    env.reset(seed=0)
    if on_error == "raise":
        with pytest.raises(CriticError, match="openai:tiny got no reply"):
            env.step("ls")
        return
    info = env.step("ls")[4]["ceb"]
    assert (info["scored"], info["confidence"]) == ((False, -1.0) if on_error == "unscored" else (True, 0.25))


def test_one_broken_query_of_a_batch_is_unscored_and_the_others_are_not(endpoint: str) -> None:
    critic = make_critic(f"openai:tiny?base_url={endpoint}&retries=0")
    env = ConfidenceWrapper(Shell(), critic=critic, learn="off")
    env.reset(seed=0)
    assessed = env.assess_many(["ls", "broken", "pwd"])
    assert [one.verdict.confidence for one in assessed] == [0.75, None, 0.75]


def test_cascade_of_specs_answers_where_the_model_does_not(closed_port: int) -> None:
    spec = f"openai:tiny?base_url=http://127.0.0.1:{closed_port}/v1&retries=0&timeout_s=2 | constant:0.5"
    (verdict,) = make_critic(spec).judge([QUERY], [Precedents()])
    assert (verdict.confidence, verdict.source) == (0.5, "constant:0.5")


def test_recalibrated_critic_runs_in_the_wrapper(endpoint: str) -> None:
    spec = f"openai:tiny?base_url={endpoint}"
    env = ConfidenceWrapper(Shell(), critic=spec, labeler="reward_level", recalibrate="beta")
    for _ in range(2):
        env.reset(seed=0)
        confidences = [env.step("ls")[4]["ceb"]["confidence"] for _ in range(3)]
    assert confidences == [0.75] * 3
    env.close()


def test_second_episode_is_shown_the_first_as_precedents(endpoint: str, httpserver: HTTPServer) -> None:
    env = ConfidenceWrapper(Shell(), critic=f"openai:tiny?base_url={endpoint}&k=2", labeler="reward_level")
    for _ in range(2):
        env.reset(seed=0)
        for action in ("ls", "ls -a", "pwd"):
            info = env.step(action)[4]["ceb"]
    env.close()
    texts = [json.loads(request.data)["messages"][1]["content"] for request, _ in httpserver.log]
    assert len(texts) == 6  # one request a step
    assert not any("recedent" in text for text in texts[:3])
    assert all(
        "Productive precedent 1, past score 0.75, which agreed with the label." in t for t in texts[3:]
    )
    assert all("Unproductive precedent 2, past score 0.75, which did not agree" in text for text in texts[3:])
    assert (info["productive_precedents"], info["unproductive_precedents"]) == (1, 2)


@BY_NAME
def test_names_are_registered_with_the_model_as_argument(name: str) -> None:
    assert CRITICS[name][1] == "model"
