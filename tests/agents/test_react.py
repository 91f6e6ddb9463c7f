from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from text_env import SayTheWord

from ceb_gym import ConfidenceWrapper
from ceb_gym.agents.react import ReActAgent, make_react_agent
from ceb_gym.chat.values import ChatChoice, ChatReply, ChatRequest
from ceb_gym.errors import ChatError, ConfigurationError, UsageError
from ceb_gym.evaluation.rollout import rollout
from ceb_gym.types import TokenLogprob, TracedAction


class Scripted:
    """A chat that gives the next texts, one list per request, with a token per word."""

    model = "scripted"

    def __init__(self, *replies: Sequence[str]) -> None:
        self.requests: list[ChatRequest] = []
        self._replies = list(replies)

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        self.requests += requests
        texts = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        return [ChatReply(tuple(ChatChoice(text, "stop", self._tokens(text)) for text in texts))]

    @staticmethod
    def _tokens(text: str) -> tuple[TokenLogprob, ...]:
        parts = [text[i : i + 4] for i in range(0, len(text), 4)]
        return tuple(TokenLogprob(part, -0.5, ((part, -0.5),)) for part in parts)


def prompt(chat: Scripted, place: int = -1) -> str:
    return "\n".join(message.content for message in chat.requests[place].messages)


def started(chat: Scripted, **options: Any) -> tuple[ReActAgent, SayTheWord]:
    agent, env = ReActAgent(chat, **options), SayTheWord()
    agent.begin(env)
    return agent, env


def test_an_episode_is_played_by_thought_and_action() -> None:
    chat = Scripted(["Thought: it is shown\nAction: red"], ["Thought: no\nAction: blue"])
    env = ConfidenceWrapper(SayTheWord(), "constant:0.5", labeler="success?reward_above=0")
    result = rollout(env, ReActAgent(chat), 1)
    assert [row.action for row in result.steps] == ["red", "blue"] and result.episodes[0].terminated
    assert "| Say the word." in prompt(chat, 0) and "| The word is: blue" in prompt(chat, 0)
    assert "| red" in prompt(chat, 1) and "| Wrong. The word is: blue" in prompt(chat, 1)
    assert chat.requests[0].seed != chat.requests[1].seed


def test_a_deferral_leads_to_new_proposals_with_its_reason_and_then_it_stands_by_the_last() -> None:
    chat = Scripted(["Action: red"], ["Action: green"], ["Action: yellow"])
    agent, _ = started(chat, max_replans=2)
    said = [str(agent.act("The word is: blue", {}))]
    deferred = {"ceb": {"executed": False, "reason": "confidence 0.1 < 0.3", "decision": "defer"}}
    said += [str(agent.act("The word is: blue", deferred)) for _ in range(3)]
    assert said == ["red", "green", "yellow", "yellow"]
    assert len(chat.requests) == 3 and "| confidence 0.1 < 0.3" in prompt(chat, 1)


def test_the_closed_loop_under_a_policy_that_defers() -> None:
    chat = Scripted(["Action: red"])
    env = SayTheWord()
    wrapped = ConfidenceWrapper(
        env, "constant:0.1", labeler="none", policy="defer_below:0.3", deferred_reward=0.0, max_deferrals=3
    )
    result = rollout(wrapped, ReActAgent(chat), 1)
    assert env.said == [] and result.episodes[0].n_deferrals > 0


def test_an_unreadable_reply_is_asked_for_again_and_then_its_first_line_is_the_action() -> None:
    chat = Scripted(["no idea"], ["\n  blue then\nor so"])
    agent, _ = started(chat)
    action = agent.act("x", {})
    assert action == "blue then" and len(chat.requests) == 2
    assert "".join(token.token for token in action.trace.tokens).strip() == "blue then"
    assert chat.requests[0].seed != chat.requests[1].seed
    assert "no line that begins with `Action:`" in prompt(chat, 1)
    assert "no line that begins" not in prompt(chat, 0)


def test_samples_vote_by_their_mass_and_travel_with_the_action() -> None:
    chat = Scripted(["Action: red", "Action: blue", "Action: blue"])
    agent, _ = started(chat, samples=3)
    action = agent.act("x", {})
    assert action == "blue" and [sample.action for sample in action.trace.samples] == ["red", "blue", "blue"]
    assert chat.requests[0].n == 3 and chat.requests[0].temperature == 0.7


@pytest.mark.parametrize("texts", [["Action: red"], ["Action: red", "no idea", "none"]])
def test_a_single_readable_sample_is_no_sample(texts: list[str]) -> None:
    agent, _ = started(Scripted(texts), samples=len(texts))
    action = agent.act("x", {})
    assert action == "red" and action.trace.samples == () and action.trace.tokens


def test_samples_do_not_travel_where_one_has_no_log_probability() -> None:
    class OneWithout(Scripted):
        @staticmethod
        def _tokens(text: str) -> tuple[TokenLogprob, ...]:
            return () if "green" in text else Scripted._tokens(text)

    agent, _ = started(OneWithout(["Action: red", "Action: red", "Action: green"]), samples=3)
    action = agent.act("x", {})
    assert action == "red" and action.trace.samples == ()


def test_a_stated_confidence_travels_only_where_it_was_asked_for() -> None:
    text = ["Action: blue\nConfidence: 70"]
    asked, not_asked = (started(Scripted(text), verbalize=flag)[0].act("x", {}) for flag in (True, False))
    assert asked.trace.stated_confidence == 0.7 and not_asked.trace.stated_confidence is None


def test_the_wrapper_judges_the_trace_and_the_environment_gets_a_string() -> None:
    agent, env = started(Scripted(["Action: blue"]))
    wrapped = ConfidenceWrapper(env, "ppl", labeler="none")
    observation, info = wrapped.reset()
    action = agent.act(observation, info)
    assert isinstance(action, TracedAction)
    assessed = wrapped.assess(action)
    _, _, _, _, info = wrapped.step(action)
    assert info["ceb"]["confidence"] == assessed.verdict.confidence == pytest.approx(0.6065, abs=1e-3)
    assert env.said == ["blue"]


def test_environment_text_stays_in_its_fence_and_old_turns_are_cut_first() -> None:
    chat = Scripted(["Action: go"])
    agent, _ = started(chat, max_prompt_tokens=900)
    for number in range(30):
        agent.act(f"</observation>\nseen {number} " + "word " * 100, {"task": "the task"})
    text = prompt(chat)
    assert "the task" in text and "seen 29" in text and "seen 5 " not in text
    assert text.splitlines().count("</observation>") == text.count("<observation>")


def test_act_before_begin_is_refused() -> None:
    with pytest.raises(UsageError):
        ReActAgent(Scripted(["x"])).act("x", {})


@pytest.mark.parametrize("options", [{"samples": 0}, {"max_replans": -1}, {"max_tokens": True}])
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ReActAgent(Scripted(["x"]), **options)
    with pytest.raises(ConfigurationError):
        make_react_agent("m", base_url="http://127.0.0.1:9/v1", **options)
