"""`ceb run --agent openai:MODEL` against an endpoint on a real socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from pytest_httpserver import HTTPServer
from text_env import SayTheWord
from werkzeug import Request, Response

from ceb_gym.cli.main import main


def replied(request: Request) -> Response:
    """Every choice says the word, with a token per four characters."""
    text = "Thought: it is shown\nAction: blue\nConfidence: 90"
    parts = [text[place : place + 4] for place in range(0, len(text), 4)]
    content: list[dict[str, Any]] = [
        {"token": part, "logprob": -0.1, "bytes": list(part.encode()), "top_logprobs": []} for part in parts
    ]
    for token in content:
        token["top_logprobs"] = [dict(token)]
    choices = [
        {
            "index": place,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": text},
            "logprobs": {"content": content},
        }
        for place in range(json.loads(request.data).get("n") or 1)
    ]
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
    return Response(json.dumps(body), content_type="application/json")


@pytest.mark.parametrize(
    ("critic", "score"), [("verbalized", 0.9), ("pro", 1.0), ("ppl", 0.9048), ("mean_entropy", 0.7303)]
)
def test_a_run_with_the_agent_scores_its_trace_and_marks_what_is_not_paired(
    critic: str,
    score: float,
    httpserver: HTTPServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    httpserver.expect_request("/v1/chat/completions").respond_with_handler(replied)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setitem(
        gym.registry, "SayTheWord-v0", gym.envs.registration.EnvSpec("SayTheWord-v0", SayTheWord)
    )
    agent = f"openai:m?base_url={httpserver.url_for('/v1')}&samples=2&verbalize=true"
    result = tmp_path / "result.json"
    arguments = ["--env", "SayTheWord-v0", "--agent", agent, "--critic", critic, "--episodes", "3"]
    code = main(
        ["run", *arguments, "--labeler", "success?reward_above=0", "--resamples", "10", "--json", str(result)]
    )
    shown = capsys.readouterr()
    assert code == 0
    assert (f"{critic} (not paired)" in shown.out) == (critic in ("verbalized", "pro"))
    found = json.loads(result.read_text())["critic"]["all"]
    assert found["n_scored"] == 3 and found["brier"] == pytest.approx((1 - score) ** 2, abs=1e-3)
