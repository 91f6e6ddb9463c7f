"""Critics that ask a language model: what they have in common, and the paper's critic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from ceb_gym.chat.reading import ScoreRange
from ceb_gym.chat.values import Chat, ChatReply, ChatRequest
from ceb_gym.critics.llm_replies import prompt_usage, score_verdict, unscored
from ceb_gym.critics.prompts import HISTORY_BLOCK, CriticPrompt, PromptStyle, build_prompt
from ceb_gym.errors import ChatError, ConfigurationError, CriticError, ReplyMissingError
from ceb_gym.types import Precedents, Query, Verdict

SMALLEST_PROMPT = 1_000
"""Less leaves no room for a step beside the rubric, in tokens."""


def _object_schema(words: str, score_first: bool) -> Mapping[str, Any]:
    """Schema of a reply; without bounds of the number, which some endpoints refuse and others ignore."""
    score = {"score": {"type": "number"}}
    text = {words: {"type": "string"}}
    properties = {**score, **text} if score_first else {**text, **score}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCORE_SCHEMA = _object_schema("rationale", score_first=True)
REASONING_SCHEMA = _object_schema("reasoning", score_first=False)


class ChatCritic:
    """A critic that sends one request per query, all of a batch at once, at temperature 0.

    A reply that cannot be read leaves its query unscored. An endpoint that fails is a CriticError where it
    failed for every query of the batch, so that a single step always gets what `on_critic_error` says; where
    it failed for some, these are unscored, and the others keep the scores that were paid for. A cascade
    (`openai:MODEL | counts`) answers in place of either. A reply that is missing when replies are replayed is
    always a CriticError: a replay must not differ silently.

    Args:
        name: Of the critic.
        chat: The language model.
        style: What goes into a prompt.
        max_tokens: Of a reply; models that reason before they answer need more.

    Raises:
        ConfigurationError: If an argument cannot work.
    """

    def __init__(self, name: str, chat: Chat, style: PromptStyle, max_tokens: int) -> None:
        if isinstance(chat, type) or not isinstance(chat, Chat):
            raise ConfigurationError(f"The critic {name} got {chat!r}, which is no Chat: pass an OpenAIChat.")
        check_whole("k", style.k, 0)
        check_whole("max_tokens", max_tokens, 1)
        check_whole("max_prompt_tokens", style.max_tokens, SMALLEST_PROMPT)
        if style.history_steps != 0:
            check_whole("history_steps", style.history_steps, HISTORY_BLOCK, "or 0 for none")
        self.name = name
        self.k = style.k
        self._chat = chat
        self._style = style
        self._max_tokens = max_tokens

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns one verdict per query. Raises CriticError where the endpoint fails for all of them."""
        if not queries:
            return []
        prompts = [build_prompt(*pair, self._style) for pair in zip(queries, precedents, strict=True)]
        replies = self._chat.complete([self._request(prompt) for prompt in prompts])
        self._check_replies(replies, len(prompts))
        return [self._verdict(reply, prompt) for reply, prompt in zip(replies, prompts, strict=True)]

    def _check_replies(self, replies: Sequence[ChatReply | ChatError], count: int) -> None:
        if len(replies) != count:
            raise CriticError(f"Critic {self.name} got {len(replies)} replies to {count} requests.")
        errors = [reply for reply in replies if isinstance(reply, ChatError)]
        missing = [error for error in errors if isinstance(error, ReplyMissingError)]
        if missing or len(errors) == count:
            first = (missing or errors)[0]
            raise CriticError(f"Critic {self.name} got no reply: {first}") from first

    def _verdict(self, reply: ChatReply | ChatError, prompt: CriticPrompt) -> Verdict:
        if isinstance(reply, ChatError):
            return unscored(f"no reply: {reply}", self.name, {}, prompt.note)
        if not reply.choices:
            return unscored("the reply has no choices", self.name, prompt_usage(reply, prompt), prompt.note)
        return self._read(reply, prompt)

    def _request(self, prompt: CriticPrompt) -> ChatRequest:
        raise NotImplementedError

    def _read(self, reply: ChatReply, prompt: CriticPrompt) -> Verdict:
        raise NotImplementedError


class CebCritic(ChatCritic):
    """The paper's critic: a fixed model that is shown precedents of both classes, with past scores.

    z = clip(score, 0, 1) of a JSON reply. The prompt is described in `ceb_gym.critics.prompts`.

    Args:
        chat: The language model.
        k: Precedents per class.
        score_range: "auto" clips [-0.5, 1.5], reads other scales that are plain (85 %, 8/10) and leaves the
            rest unscored; "paper" always clips; "percent" divides by 100.
        max_prompt_tokens: Budget of a prompt, by estimate, at least 1,000; what is cut is told.
        history_steps: Most earlier steps shown: at least 8, or 0 for none.
        use_repetition_flag: Whether the flag is shown (the paper's ablation leaves it out).
        max_tokens: Of a reply; models that reason before they answer need more.

    Source: arXiv 2607.12397.
    """

    def __init__(
        self,
        chat: Chat,
        k: int = 2,
        score_range: ScoreRange = "auto",
        max_prompt_tokens: int = 6_000,
        history_steps: int = 16,
        use_repetition_flag: bool = True,
        max_tokens: int = 400,
    ) -> None:
        style = PromptStyle(
            k=k,
            repetition_flag=checked_switch("use_repetition_flag", use_repetition_flag),
            max_tokens=max_prompt_tokens,
            history_steps=history_steps,
        )
        super().__init__(f"openai:{getattr(chat, 'model', '?')}", chat, style, max_tokens)
        self._score_range: ScoreRange = checked_range(score_range)

    def _request(self, prompt: CriticPrompt) -> ChatRequest:
        return ChatRequest(prompt.messages, max_tokens=self._max_tokens, json_schema=SCORE_SCHEMA)

    def _read(self, reply: ChatReply, prompt: CriticPrompt) -> Verdict:
        return score_verdict(reply, prompt, source=self.name, score_range=self._score_range)


def checked_range(score_range: ScoreRange) -> ScoreRange:
    """Returns the range of scores. Raises ConfigurationError where there is no such one."""
    if score_range not in get_args(ScoreRange):
        known = ", ".join(get_args(ScoreRange))
        raise ConfigurationError(f"score_range is {score_range!r}: choose one of {known}.")
    return score_range


def checked_switch(name: str, value: bool) -> bool:
    """Returns the switch. Raises ConfigurationError where it is neither true nor false."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} is {value!r}: give true or false.")
    return value


def check_whole(name: str, value: int, least: int, also: str = "") -> None:
    """Raises ConfigurationError where the value is no whole number from `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        wanted = f"a whole number from {least}{', ' + also if also else ''}"
        raise ConfigurationError(f"{name} is {value!r}: give {wanted}.")
