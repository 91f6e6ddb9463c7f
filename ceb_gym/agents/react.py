"""A ReAct agent: a language model that thinks, acts, and replans when its action was deferred."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym

from ceb_gym.agents.react_replies import ParsedReply, first_line, parse_reply, sequence_logprob
from ceb_gym.build.specs import construct
from ceb_gym.chat.options import CHAT_OPTIONS, make_chat, split_chat_options
from ceb_gym.chat.prompting import FENCE_RULE, PromptPart, cut_to_budget, fence
from ceb_gym.chat.values import Chat, ChatReply, ChatRequest, Message
from ceb_gym.errors import ChatError, ConfigurationError, UsageError
from ceb_gym.text import clean_text, shorten
from ceb_gym.types import AgentTrace, SampledAction, TracedAction

_TEXT_CHARS = 2_000
_TASK_KEYS = ("task", "instruction", "goal")
_TOP_LOGPROBS = 5
_SEEDS = 2**30
_SEEDS_A_TURN = 100
_FORMAT = (
    "You act in a text environment, one action at a time, to fulfil a task. Reply in this form and nothing "
    "else:\nThought: what to do next and why, in one or two sentences\n"
    "Action: the action, as the environment takes it"
)
_REMINDER = "\n\nThe last reply had no line that begins with `Action:`. Keep to the form."
_CONFIDENCE = "\nConfidence: how sure you are that this action is right or advances the task, from 0 to 100"


@dataclass(frozen=True, slots=True)
class _Turn:
    """What was done, and what came of it; `deferred` is the reason why it was not executed."""

    action: str
    outcome: str
    deferred: str | None = None


class ReActAgent:
    """Acts by a language model's thought and action, and attaches how it came to it (`TracedAction`).

    A reply without an action is asked for once more, with a reminder of the form and another seed; then its
    first line is the action, or "?" where it is empty. An
    action that a policy deferred is answered with a new one, which sees the reason, at most `max_replans`
    times in one state; then the agent stands by its last.

    Args:
        chat: The language model.
        max_replans: New proposals after deferrals in one state.
        samples: Replies sampled per step; the action with the largest probability mass is taken (PRO uses 5).
        verbalize: Whether the agent states its confidence with the action.
        temperature: None means 0 for one sample and 0.7 for several.
        max_tokens: Of one reply.
        max_prompt_tokens: Budget of a prompt, by estimate; the oldest turns are cut first.
        seed: The same seed gives the same requests.

    Source: Yao et al. (2023), ReAct.
    """

    def __init__(
        self,
        chat: Chat,
        max_replans: int = 2,
        samples: int = 1,
        verbalize: bool = False,
        temperature: float | None = None,
        max_tokens: int = 256,
        max_prompt_tokens: int = 6_000,
        seed: int | None = None,
    ) -> None:
        if isinstance(chat, type) or not isinstance(chat, Chat):
            raise ConfigurationError(f"The agent got {chat!r}, which is no Chat: pass an OpenAIChat.")
        least = {"max_replans": 0, "samples": 1, "max_tokens": 8, "max_prompt_tokens": 500}
        given = {
            "max_replans": max_replans,
            "samples": samples,
            "max_tokens": max_tokens,
            "max_prompt_tokens": max_prompt_tokens,
        }
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < least[name]:
                raise ConfigurationError(f"{name} is {value!r}: give a whole number from {least[name]}.")
        self._chat = chat
        self._max_replans, self._samples, self._verbalize = max_replans, samples, verbalize
        self._temperature = (0.0 if samples == 1 else 0.7) if temperature is None else float(temperature)
        self._max_tokens, self._max_prompt_tokens = max_tokens, max_prompt_tokens
        self._seed = seed or 0
        self._episode = -1
        self._begun = False

    def begin(self, env: gym.Env[Any, Any]) -> None:
        """Forgets the last episode."""
        self._episode += 1
        self._begun = True
        self._task = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        self._turns: list[_Turn] = []
        self._last: TracedAction | None = None
        self._replans = 0
        self._requests = 0

    def act(self, observation: Any, info: Mapping[str, Any]) -> TracedAction:
        """Returns the next action.

        Raises:
            ChatError: If the endpoint gives no reply.
        """
        if not self._begun:
            raise UsageError("`act` was called before `begin`: call `begin` at the start of each episode.")
        seen = observation_text(observation)
        if self._last is None:
            self._task = next((str(info[key]) for key in _TASK_KEYS if info.get(key)), self._task)
            self._first_seen = seen
        elif _was_deferred(info):
            if self._replans >= self._max_replans:
                return self._last
            self._replans += 1
            self._turns.append(_Turn(str(self._last), "", _reason(info)))
        else:
            self._replans = 0
            self._turns.append(_Turn(str(self._last), seen))
        self._last = self._propose()
        return self._last

    def _propose(self) -> TracedAction:
        *before, last = self._messages()
        for reminder in ("", _REMINDER):  # at temperature 0 the same prompt would get the same reply
            messages = (*before, replace(last, content=last.content + reminder))
            parsed = [parse_reply(choice) for choice in self._reply(messages).choices]
            readable = [reply for reply in parsed if reply.action is not None]
            if readable:
                return self._chosen(readable)
        return self._chosen([first_line(reply) for reply in parsed])

    def _chosen(self, replies: Sequence[ParsedReply]) -> TracedAction:
        samples = []
        for reply in replies:
            logprob = sequence_logprob(reply.tokens)
            if logprob is not None:
                samples.append(SampledAction(reply.action or "", logprob))
        best = replies[0]
        if len(samples) == len(replies) > 1:
            best = _most_probable(replies, samples)
        else:
            samples = []  # shares among some of the samples, or of one, would be no shares
        stated = best.confidence if self._verbalize else None
        return TracedAction(best.action or "", AgentTrace(best.action_tokens, stated, tuple(samples)))

    def _reply(self, messages: tuple[Message, ...]) -> ChatReply:
        seed = (self._seed * 7919 + self._episode * 104_729) % _SEEDS + self._requests * _SEEDS_A_TURN
        self._requests += 1
        request = ChatRequest(
            messages,
            temperature=self._temperature,
            n=self._samples,
            max_tokens=self._max_tokens,
            seed=seed,
            top_logprobs=_TOP_LOGPROBS,
            stop=("\nObservation:",),
        )
        (reply,) = self._chat.complete([request])
        if isinstance(reply, ChatError):
            raise reply
        return reply

    def _messages(self) -> tuple[Message, ...]:
        parts = [
            PromptPart("task", fence(shorten(self._task, _TEXT_CHARS), "task")),
            PromptPart("observation", fence(shorten(self._first_seen, _TEXT_CHARS), "observation")),
            *(PromptPart("turn", _shown(turn), order=1) for turn in self._turns[:-1]),
            *(PromptPart("turn", _shown(turn)) for turn in self._turns[-1:]),
        ]
        shown = [text for text in cut_to_budget(parts, self._max_prompt_tokens).texts if text]
        asked = _FORMAT + (_CONFIDENCE if self._verbalize else "")
        return (
            Message("system", f"{asked}\n\n{FENCE_RULE}"),
            Message("user", "\n\n".join([*shown, "What do you do next?"])),
        )


def make_react_agent(model: str, seed: int | None = None, **options: Any) -> ReActAgent:
    """The agent of `openai:MODEL?...`, of which some options are the endpoint's and the others its own."""
    of_chat, others = split_chat_options(options)
    shown = f"openai:{model}"
    chat = construct("agent", shown, make_chat, {"model": str(model), **of_chat})
    fixed = {"chat": chat, "seed": seed}
    agent: ReActAgent = construct("agent", shown, ReActAgent, others, fixed, tuple(sorted(CHAT_OPTIONS)))
    return agent


def observation_text(observation: Any) -> str:
    """An observation as text: as it is, or a line per entry of a dictionary."""
    if isinstance(observation, Mapping):
        return clean_text("\n".join(f"{key}: {value}" for key, value in observation.items()))
    return clean_text(str(observation))


def _was_deferred(info: Mapping[str, Any]) -> bool:
    block = info.get("ceb")
    return isinstance(block, Mapping) and not block.get("executed", True)


def _reason(info: Mapping[str, Any]) -> str:
    return str(info["ceb"].get("reason") or "its confidence is low")


def _shown(turn: _Turn) -> str:
    action = fence(shorten(turn.action, _TEXT_CHARS), "action")
    if turn.deferred is None:
        return f"{action}\n{fence(shorten(turn.outcome, _TEXT_CHARS), 'observation')}"
    why = fence(shorten(turn.deferred, _TEXT_CHARS), "reason")
    return f"{action}\nThis action was not executed, for this reason:\n{why}\nPropose another one."


def _most_probable(replies: Sequence[ParsedReply], samples: Sequence[SampledAction]) -> ParsedReply:
    """The first reply with the action that has the largest mass among the samples."""
    largest = max(sample.logprob for sample in samples)
    masses: dict[str, float] = {}
    for sample in samples:
        masses[sample.action] = masses.get(sample.action, 0.0) + math.exp(sample.logprob - largest)
    best = max(masses, key=lambda action: masses[action])
    return next(reply for reply in replies if reply.action == best)
