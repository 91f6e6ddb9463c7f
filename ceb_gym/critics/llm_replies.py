"""From a language model's reply to a verdict: its own score, never one that it copied from its prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ceb_gym.chat.reading import ScoreRange, first_json_object, read_score
from ceb_gym.chat.values import ChatReply, Message
from ceb_gym.critics.prompts import CriticPrompt
from ceb_gym.text import clean_text, shorten
from ceb_gym.types import Verdict

_RATIONALE_CHARS = 600
_SHOWN_CHARS = 120
_DECODER = json.JSONDecoder()


def own_object(text: str, field: str, messages: Sequence[Message]) -> Mapping[str, Any] | None:
    """The first complete JSON object with the field in a reply that is no copy of one in the prompt.

    A model may quote the environment before it answers. An object that equals one in the prompt's messages
    is passed over, even where it is the only one: what looks like a copy is no answer.
    """
    found = first_json_object(text, field)
    if found is None:
        return None
    copied = [value for message in messages for value in _objects(message.content, field)]
    while found is not None and found in copied:
        text = _after(text, found)
        found = first_json_object(text, field)
    return found


def score_verdict(
    reply: ChatReply,
    prompt: CriticPrompt,
    *,
    source: str,
    score_range: ScoreRange,
    words: str = "rationale",
) -> Verdict:
    """The verdict of a reply that is a JSON object with `score`; unscored where none can be read.

    Args:
        reply: Its first choice counts.
        prompt: What it replies to.
        source: Name of the critic.
        score_range: How scores outside of [0, 1] are read, see `ceb_gym.chat.reading.read_score`.
        words: Field of the object that becomes the rationale.

    Returns:
        Its usage is the reply's, with `score_clipped` 1 where the score was clipped and `prompt_parts_cut`
        where the prompt was cut; the rationale says both in words.
    """
    choice = reply.choices[0]
    found = own_object(choice.text, "score", prompt.messages)
    usage = prompt_usage(reply, prompt)
    if found is None:
        return unscored(_unreadable(choice.text, choice.finish_reason), source, usage, prompt.note)
    read = read_score(found["score"], score_range=score_range)
    if read.score is None:
        why = read.note or f"the score {shorten(repr(found['score']), _SHOWN_CHARS)} cannot be read"
        return unscored(why, source, usage, prompt.note)
    if read.clipped:
        usage["score_clipped"] = 1.0
    notes = [f"[{read.note}]" if read.note else "", prompt.note]
    rationale = _plain(found.get(words, ""))
    return Verdict(read.score, " ".join(filter(None, [rationale, *notes])), source, usage)


def prompt_usage(reply: ChatReply, prompt: CriticPrompt) -> dict[str, float]:
    """What the reply cost, with `prompt_parts_cut` where the prompt was cut to its budget."""
    usage = dict(reply.usage)
    if prompt.cut:
        usage["prompt_parts_cut"] = float(sum(prompt.cut.values()))
    return usage


def unscored(why: str, source: str, usage: Mapping[str, float], note: str = "") -> Verdict:
    """A verdict without a confidence that says why."""
    return Verdict(None, " ".join(filter(None, [f"unscored: {why}", note])), source, usage)


def _unreadable(text: str, finish_reason: str) -> str:
    ended = f", ended by {finish_reason!r}" if finish_reason not in ("", "stop") else ""
    if not text.strip():
        return f"the reply is empty{ended}"
    return (
        f"the reply has no JSON object of its own with `score`{ended}: {shorten(_plain(text), _SHOWN_CHARS)}"
    )


def _plain(value: object) -> str:
    """Text on one line, short enough to be kept with a step."""
    return shorten(" ".join(clean_text(str(value)).split()), _RATIONALE_CHARS)


def _objects(prompt: str, field: str) -> Iterator[Mapping[str, Any]]:
    """All JSON objects with the field that stand anywhere in a prompt, fenced or escaped."""
    if f'"{field}' not in prompt:
        return
    lines = prompt.replace("\n| ", "\n")
    for text in (lines, lines.replace('\\"', '"')) if '\\"' in lines else (lines,):
        for start in _braces(text):
            value, _ = _decoded(text, start)
            if isinstance(value, dict) and field in value:
                yield value


def _after(text: str, found: Mapping[str, Any]) -> str:
    """What follows the first object equal to the one found; "" where it cannot be told."""
    for start in _braces(text):
        value, end = _decoded(text, start)
        if value == found:
            return text[end:]
    return ""


def _braces(text: str) -> Iterator[int]:
    start = text.find("{")
    while start >= 0:
        yield start
        start = text.find("{", start + 1)


def _decoded(text: str, start: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start
