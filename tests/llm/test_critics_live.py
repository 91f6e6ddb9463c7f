"""Critics against SmolLM2-135M on loopback: shapes, ranges, counts, prompt contents; never its judgement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import pytest

from ceb_gym import ConfidenceWrapper
from ceb_gym.build.parts import make_critic
from ceb_gym.chat.options import make_chat
from ceb_gym.chat.prompting import estimate_tokens, fence
from ceb_gym.chat.values import Chat, ChatReply, ChatRequest, Message
from ceb_gym.critics.llm import CebCritic, ChatCritic
from ceb_gym.critics.llm_baselines import CotCritic, PTrueCritic, StaticCritic
from ceb_gym.errors import ChatError
from ceb_gym.types import HistoryItem, Precedent, Precedents, Query, Record, Verdict

TASK = "Find all text files larger than 1 kB under /testbed and count them."
HISTORY = (HistoryItem("", "ls /testbed", "dir1  dir2  notes.txt", True, 0.75),)
QUERY = Query(
    "bash", "s", 0, "e", TASK, "dir1  dir2  notes.txt", "find /testbed -size +1k", HISTORY, False, 1
)


def make_record(label: bool) -> Record:
    return Record(
        record_id=f"old:{label}:1",
        scope="s",
        episode_id="old",
        step_index=0,
        task="Count the files in /system",
        state="$",
        action="ls /system | wc -l" if label else "lss /system",
        outcome="12" if label else "bash: lss: command not found",
        label=label,
        vote_share=float(label),
        votes=5,
        confidence=0.75,
        agrees=label,
        repeated=False,
        critic="openai:smollm2",
        labeler="test",
        created_at=0.0,
    )


PRECEDENTS = Precedents((Precedent(make_record(True), 0.5),), (Precedent(make_record(False), 0.4),))


class Noting:
    """A chat that keeps what it passes on."""

    def __init__(self, inner: Chat) -> None:
        self._inner = inner
        self.model = inner.model
        self.requests: list[ChatRequest] = []
        self.replies: list[ChatReply | ChatError] = []

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        replies = self._inner.complete(requests)
        self.requests.extend(requests)
        self.replies.extend(replies)
        return replies


@pytest.fixture(scope="module")
def real_chat(model_url: str) -> Iterator[Any]:
    chat = make_chat("smollm2", base_url=model_url, concurrency=1, timeout_s=60.0, deadline_s=120.0)
    yield chat
    chat.close()


@pytest.fixture
def chat(real_chat: Chat) -> Noting:
    return Noting(real_chat)


def check_verdict(verdict: Verdict, name: str) -> None:
    assert verdict.source == name
    assert verdict.confidence is None or 0.0 <= verdict.confidence <= 1.0
    assert verdict.rationale.startswith("unscored") == (verdict.confidence is None)
    assert verdict.usage["requests"] >= 1 and verdict.usage["prompt_tokens"] > 100
    assert 1 <= verdict.usage["completion_tokens"] <= 100


@pytest.mark.parametrize("kind", [CebCritic, StaticCritic, CotCritic])
def test_scoring_critics_answer_each_query_in_range_or_unscored(kind: type[ChatCritic], chat: Noting) -> None:
    critic = kind(chat, max_tokens=100)  # type: ignore[call-arg, arg-type]
    queries = [QUERY, replace(QUERY, action="rm -rf /testbed")]
    verdicts = critic.judge(queries, [PRECEDENTS] * 2)
    assert len(verdicts) == 2 and len(chat.requests) == 2
    for verdict in verdicts:
        check_verdict(verdict, critic.name)


def test_p_true_gives_masses_of_real_log_probabilities(chat: Noting) -> None:
    critic = PTrueCritic(chat)
    first, again = (critic.judge([QUERY], [Precedents()])[0] for _ in range(2))
    check_verdict(first, "p_true:smollm2")
    (reply, _) = chat.replies
    assert isinstance(reply, ChatReply) and reply.choices[0].tokens
    assert first.confidence is not None and again.confidence is not None
    assert 0.0 < first.features["p_true_mass"] <= 1.0
    assert first.features["p_true"] == first.confidence
    assert first.features["p_true_mass"] <= first.features["p_true"] + 1e-9
    assert again.confidence == pytest.approx(first.confidence, abs=0.05)


def test_precedents_reach_the_model_and_cost_tokens(chat: Noting) -> None:
    critic = CebCritic(chat, max_tokens=60)
    (without,) = critic.judge([QUERY], [Precedents()])
    (with_both,) = critic.judge([QUERY], [PRECEDENTS])
    text = chat.requests[1].messages[1].content
    assert "| bash: lss: command not found" in text and "| ls /system | wc -l" in text
    more = with_both.usage["prompt_tokens"] - without.usage["prompt_tokens"]
    assert 100 < more < 500


def test_estimate_of_tokens_is_near_what_the_server_counts(chat: Noting) -> None:
    critic = CebCritic(chat, max_tokens=60)
    (verdict,) = critic.judge([QUERY], [PRECEDENTS])
    estimate = sum(estimate_tokens(message.content) for message in chat.requests[0].messages)
    assert 0.75 <= estimate / verdict.usage["prompt_tokens"] <= 1.5


def prompt_tokens(chat: Noting, content: str) -> float:
    (reply,) = chat.complete([ChatRequest((Message("user", content),), max_tokens=1)])
    assert isinstance(reply, ChatReply)
    return reply.usage["prompt_tokens"]


def test_fence_keeps_the_server_from_reading_the_end_of_a_turn(chat: Noting) -> None:
    empty = prompt_tokens(chat, "x")
    real_ends = prompt_tokens(chat, "x" + "<|im_end|>" * 40) - empty
    fenced = prompt_tokens(chat, fence("x" + "<|im_end|>" * 40, "state")) - empty
    assert real_ends <= 45, "this server does read them: one token each"
    assert fenced >= 160


class Shell(gym.Env[str, str]):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self) -> None:
        letters = frozenset(map(chr, range(32, 127)))
        self.observation_space = gym.spaces.Text(200, min_length=0, charset=letters)
        self.action_space = gym.spaces.Text(200, min_length=0, charset=letters)
        self._steps = 0

    def reset(self, **arguments: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=arguments.get("seed"))
        self._steps = 0
        return "$", {"task": TASK}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return f"$ {action} gave line {self._steps}", 0.5, self._steps == 3, False, {"task": TASK}


def test_wrapper_judges_whole_episodes_by_a_spec_string(model_url: str) -> None:
    critic = make_critic(f"openai:smollm2?base_url={model_url}&k=1&concurrency=1&timeout_s=60&max_tokens=60")
    env = ConfidenceWrapper(Shell(), critic=critic, labeler="reward_level")
    infos = []
    for _ in range(2):
        env.reset(seed=0)
        infos.extend(env.step(action)[4]["ceb"] for action in ("ls", "ls -a", "pwd"))
    env.close()
    assert all(info["source"] == "openai:smollm2" for info in infos)
    assert all(info["confidence"] == -1.0 or 0.0 <= info["confidence"] <= 1.0 for info in infos)
    assert [info["productive_precedents"] for info in infos] == [0, 0, 0, 1, 1, 1]
    assert [info["unproductive_precedents"] for info in infos] == [0, 0, 0, 1, 1, 1]
