"""All estimators of the paper on live episodes of a ReAct agent with SmolLM2-135M: numbers, not judgement."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ceb_gym import ConfidenceWrapper
from ceb_gym.agents.react import make_react_agent
from ceb_gym.build.parts import make_critic
from ceb_gym.evaluation.rollout import rollout

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from text_env import SayTheWord


@pytest.mark.timeout(300)
def test_eight_estimators_score_a_real_agent(model_url: str) -> None:
    endpoint = f"base_url={model_url}&concurrency=1"
    own = {name: make_critic(name) for name in ("ppl", "mean_entropy", "pro", "verbalized")}
    asked = {name: make_critic(f"{name}:smollm2?{endpoint}&max_tokens=48") for name in ("static", "cot")}
    asked["p_true"] = make_critic(f"p_true:smollm2?{endpoint}")
    wrapped = ConfidenceWrapper(
        SayTheWord(), f"openai:smollm2?{endpoint}&max_tokens=48", labeler="success?reward_above=0"
    )
    agent = make_react_agent(
        "smollm2", seed=1, base_url=model_url, concurrency=1, samples=3, verbalize=True, max_tokens=40
    )
    result = rollout(wrapped, agent, 2, estimators={**own, **asked})
    assert len(result.episodes) == 2 and result.steps
    for row in result.steps:
        assert set(row.confidence) == {"critic", *own, *asked}
        assert all(score is None or 0 <= score <= 1 for score in row.confidence.values())
    readable = [row for row in result.steps if row.confidence["ppl"] is not None]
    assert readable, "no action of the real agent had log probabilities"
    assert all(row.confidence["mean_entropy"] is not None for row in readable)
    assert any(row.confidence["p_true"] is not None for row in result.steps)
