"""Reads a ReAct reply: the action, its tokens, and the confidence stated with it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ceb_gym.chat.reading import read_score
from ceb_gym.chat.values import ChatChoice
from ceb_gym.types import TokenLogprob

_ACTION = re.compile(r"(?:^|\n)[ \t*#-]*Action[ \t*\d]*:[ \t*]*", re.IGNORECASE)
_NEXT_PART = re.compile(r"\n[ \t*#-]*(?:Thought|Observation|Confidence|Action)[ \t*\d]*:", re.IGNORECASE)
_CONFIDENCE = re.compile(r"(?:^|\n)[ \t*#-]*Confidence[ \t*]*:[ \t*]*([^\n]+)", re.IGNORECASE)
_FENCED = re.compile(r"```[a-z]*[ \t]*\n?(.*?)\n?```", re.DOTALL)
_THINKS, _THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """What a reply says.

    Attributes:
        text: All of it.
        action: None where there is none.
        tokens: All that was written, where log probabilities came.
        action_tokens: Those of the action alone.
        confidence: As stated, in [0, 1]; None where none can be read.
    """

    text: str
    action: str | None
    tokens: tuple[TokenLogprob, ...]
    action_tokens: tuple[TokenLogprob, ...]
    confidence: float | None


def parse_reply(choice: ChatChoice) -> ParsedReply:
    """Reads the first action of a reply, in a fence or backticks or plain.

    Actions that a reasoning model only considers, before `</think>`, are none.
    """
    text = choice.text
    tokens = choice.tokens or ()
    thought = _end_of_thinking(text)
    found = _ACTION.search(text[thought:])
    stated = _CONFIDENCE.search(text[thought:])
    confidence = read_score(stated[1].strip(), score_range="percent").score if stated else None
    if found is None:
        return ParsedReply(text, None, tokens, (), confidence)
    begin = thought + found.end()
    following = _NEXT_PART.search(text, begin)
    start, end = _span(text, begin, following.start() if following else len(text))
    action = text[start:end]
    if not action:
        return ParsedReply(text, None, tokens, (), confidence)
    return ParsedReply(text, action, tokens, _tokens_of(tokens, text, start, end), confidence)


def first_line(reply: ParsedReply) -> ParsedReply:
    """The reply with its first line that is not empty as the action, where it says none; "?" without any.

    Lines before `</think>` do not count.
    """
    thought = _end_of_thinking(reply.text)
    line = next((line.strip() for line in reply.text[thought:].splitlines() if line.strip()), "")
    if not line:
        return replace(reply, action="?")
    start = reply.text.index(line, thought)
    tokens = _tokens_of(reply.tokens, reply.text, start, start + len(line))
    return replace(reply, action=line, action_tokens=tokens)


def _end_of_thinking(text: str) -> int:
    """Where the answer begins. Servers may leave out `<think>`; an action may hold `</think>` itself."""
    end = text.find(_THOUGHT)
    begin = end + len(_THOUGHT)
    if text.lstrip().startswith(_THINKS):
        return begin if end >= 0 else len(text)
    return begin if end >= 0 and _ACTION.search(text[begin:]) else 0


def _span(text: str, start: int, end: int) -> tuple[int, int]:
    """The action without white space, fence and backticks around it."""
    fenced = _FENCED.search(text, start, end)
    if fenced is not None and not text[start : fenced.start()].strip():
        start, end = fenced.span(1)
    start, end = _stripped(text, start, end)
    if end - start > 2 and text[start] == text[end - 1] == "`":
        start, end = _stripped(text, start + 1, end - 1)
    return start, end


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _tokens_of(tokens: Sequence[TokenLogprob], text: str, start: int, end: int) -> tuple[TokenLogprob, ...]:
    """The tokens that overlap a part of the text; none where the tokens do not spell the text."""
    written = [token for token in tokens if not token.is_end]
    spelled = "".join(token.token for token in written)
    offset = spelled.find(text)  # some servers leave white space or marks out of the content
    if offset < 0:
        return ()
    found, place = [], -offset
    for token in written:
        if place < end and place + len(token.token) > start:
            found.append(token)
        place += len(token.token)
    return tuple(found)


def sequence_logprob(tokens: Sequence[TokenLogprob]) -> float | None:
    """The log probability of all that was written; None where a token has none, or nothing was."""
    logprobs = [token.logprob for token in tokens if not token.is_end]
    known = [logprob for logprob in logprobs if logprob is not None]
    return math.fsum(known) if known and len(known) == len(logprobs) else None
