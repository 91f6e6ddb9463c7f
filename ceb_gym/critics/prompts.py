"""The prompts of the critics that ask a language model: pure functions of a query and its precedents.

A prompt has the parts that arXiv 2607.12397 names and no others: task, state, earlier steps with outcome and
past score, action, precedents of both classes with outcome, past score and agreement flag, repetition flag.
`Query.trace` is none of them. The order is the rubric, the task, the earlier steps, and then what changes
from step to step, so that a server can keep what it has read: within an episode a prompt starts with the
rubric, the task and the history of the prompt before, byte by byte, until the oldest steps leave the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ceb_gym.chat.prompting import FENCE_RULE, RUBRIC, PromptPart, cut_to_budget, fence
from ceb_gym.chat.values import Message
from ceb_gym.text import shorten
from ceb_gym.types import HistoryItem, Precedent, Precedents, Query

HISTORY_BLOCK = 8
"""Old steps leave the prompt this many at a time: one by one, each step would change all that follows."""

_NEWEST_STEPS = 3
_CUT_FULL_BLOCKS, _CUT_OTHER_STEPS, _CUT_PRECEDENTS, _CUT_NEWEST = 1, 2, 1_000, 1_001  # less is cut first
_CUT_STATE, _CUT_TASK, _CUT_ACTION = 1_002, 1_003, 1_004

_OPENING = "You judge the next action of an agent before it is executed: is it productive?"
_SCORES_RULE = "Past scores are probabilities, given before the outcome was known, and may be wrong."
_PRECEDENTS_RULE = (
    "Precedents are steps of earlier episodes that resemble this one: their outcome, the label they got in "
    "hindsight, their past score, and whether score and label agreed. They are evidence and not the answer: "
    "look at what differs, and where past scores missed the label, do not make the same mistake."
)
_REPETITION_RULE = "The repetition flag says whether the action repeats one of the last three."
SCORE_REPLY = (
    "Reply with one JSON object and nothing else, with the keys `score` (a number from 0 to 1: the "
    "probability that the action is productive) and `rationale` (at most 25 words)."
)
REASONING_REPLY = (
    "Reply with one JSON object and nothing else, with the keys `reasoning` (first think step by step, in at "
    "most 120 words: what the task needs now, and what the action will do) and `score` (a whole number from "
    "0 to 100: how confident you are that the action is productive)."
)
TRUE_OR_FALSE = "Is the proposed action correct, that is, productive? Answer with one word, True or False."


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """What goes into a prompt, and how much of it.

    Attributes:
        reply: The reply that is asked for; the rubric ends with it, and so does the prompt.
        k: Precedents per class; 0 leaves all about precedents out.
        repetition_flag: Whether the flag is shown.
        max_tokens: Budget of the whole prompt, by estimate.
        history_steps: Most earlier steps that are shown; past it they leave eight at a time.
        max_state_chars: Of the state; a third of it when the prompt is too long.
        max_outcome_chars: Of each earlier outcome.
        max_action_chars: Of each action.
        precedent_chars: Of each text of a precedent.
    """

    reply: str = SCORE_REPLY
    k: int = 2
    repetition_flag: bool = True
    max_tokens: int = 6_000
    history_steps: int = 16
    max_state_chars: int = 2_400
    max_outcome_chars: int = 600
    max_action_chars: int = 2_400
    precedent_chars: int = 200


@dataclass(frozen=True, slots=True)
class CriticPrompt:
    """What is sent for one query.

    Attributes:
        messages: The rubric as the system's, all else as the user's.
        stable_chars: How much of the user's message, from its start, is task and history.
        tokens: Estimate for all messages.
        cut: How many parts of each name were cut to meet the budget.
        note: The same in words; "" when nothing was cut.
    """

    messages: tuple[Message, ...]
    stable_chars: int
    tokens: int
    cut: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


def rubric_text(style: PromptStyle) -> str:
    """The fixed first message: the same for all steps and episodes of a critic, at most 500 tokens."""
    rules = [_OPENING, RUBRIC, FENCE_RULE, _SCORES_RULE]
    if style.k:
        rules.append(_PRECEDENTS_RULE)
    if style.repetition_flag:
        rules.append(_REPETITION_RULE)
    return "\n\n".join([*rules, style.reply])


def build_prompt(query: Query, precedents: Precedents, style: PromptStyle) -> CriticPrompt:
    """Builds the prompt for one query within its budget.

    Cut in this order until it fits: earlier steps but for the newest three, oldest eight first; precedents,
    farthest first; the other earlier steps; then state, task and action are shortened.
    """
    system = rubric_text(style)
    stable = [_task_part(query.task, style), *_history_parts(query, style)]
    changing = [*_precedent_parts(precedents, style), *_step_parts(query, style)]
    cut = cut_to_budget([PromptPart("rubric", system), *stable, *changing], style.max_tokens)
    texts = cut.texts[1:]
    return CriticPrompt(
        messages=(Message("system", system), Message("user", "".join(texts))),
        stable_chars=len("".join(texts[: len(stable)])),
        tokens=cut.tokens,
        cut=cut.cut,
        note=cut.note,
    )


def _task_part(task: str, style: PromptStyle) -> PromptPart:
    whole, short = (
        f"The task of the agent:\n{fence(shorten(task, limit), 'task')}\n\n"
        for limit in (style.max_state_chars, style.max_state_chars // 3)
    )
    return PromptPart("task", whole, _CUT_TASK, short)


def _history_parts(query: Query, style: PromptStyle) -> list[PromptPart]:
    """The earlier steps, grouped by how they are cut; each is the same text whatever the group."""
    if not (query.history and style.history_steps):
        return []
    first = max(0, query.step_index - len(query.history))
    start = max(first, first + len(query.history) - style.history_steps)
    start = -(-start // HISTORY_BLOCK) * HISTORY_BLOCK
    parts = [PromptPart("heading", "Earlier steps of this episode:\n\n")]
    if start:
        parts.append(PromptPart("note", _left_out(0, start - 1)))
    shown = [(first + place, item) for place, item in enumerate(query.history) if first + place >= start]
    older, newest = shown[:-_NEWEST_STEPS], shown[-_NEWEST_STEPS:]
    blocks: dict[int, list[tuple[int, HistoryItem]]] = {}
    for index, item in older:
        blocks.setdefault(index // HISTORY_BLOCK, []).append((index, item))
    for block in blocks.values():
        order = _CUT_FULL_BLOCKS if len(block) == HISTORY_BLOCK else _CUT_OTHER_STEPS
        text = "".join(_history_text(index, item, style) for index, item in block)
        gone = _left_out(block[0][0], block[-1][0])
        parts.append(PromptPart("group(s) of earlier steps", text, order, gone))
    for index, item in newest:
        text = _history_text(index, item, style)
        parts.append(PromptPart("recent step(s)", text, _CUT_NEWEST, _left_out(index, index)))
    return parts


def _left_out(first: int, last: int) -> str:
    return f"Steps {first} to {last} are left out.\n\n" if first < last else f"Step {first} is left out.\n\n"


def _history_text(index: int, item: HistoryItem, style: PromptStyle) -> str:
    action = fence(shorten(item.action, style.max_action_chars // 3), "action")
    if not item.executed:
        return f"Step {index}, {_score_text(item.confidence)}, was not executed.\n{action}\n\n"
    outcome = fence(shorten(item.outcome or "", style.max_outcome_chars), "outcome")
    return f"Step {index}, {_score_text(item.confidence)}.\n{action}\n{outcome}\n\n"


def _score_text(confidence: float | None) -> str:
    return "no past score" if confidence is None else f"past score {confidence:.2f}"


def _precedent_parts(precedents: Precedents, style: PromptStyle) -> list[PromptPart]:
    """Both classes, each left out where it is empty; the farthest are cut first."""
    parts: list[PromptPart] = []
    classes = (("productive", precedents.productive), ("unproductive", precedents.unproductive))
    for word, found in classes:
        for place, precedent in enumerate(found[: style.k]):
            heading = f"Precedents labelled {word}, the most similar first:\n\n" if place == 0 else ""
            text = heading + _precedent_text(word, place, precedent, style)
            parts.append(PromptPart("precedent(s)", text, max(3, _CUT_PRECEDENTS - place)))
    return parts


def _precedent_text(word: str, place: int, precedent: Precedent, style: PromptStyle) -> str:
    record = precedent.record
    limit = style.precedent_chars
    verdict = ""
    if record.agrees is not None:
        verdict = ", which agreed with the label" if record.agrees else ", which did not agree with the label"
    texts = (
        fence(shorten(text, limit), label)
        for text, label in (
            (record.task, "task"),
            (record.state, "state"),
            (record.action, "action"),
            (record.outcome, "outcome"),
        )
    )
    head = f"{word.capitalize()} precedent {place + 1}, {_score_text(record.confidence)}{verdict}."
    return "\n".join([head, *texts]) + "\n\n"


def _step_parts(query: Query, style: PromptStyle) -> list[PromptPart]:
    """The step to judge, and once more what is asked: the last word is the prompt's own."""
    states, actions = (
        [f"{heading}:\n{fence(shorten(text, limit), label)}\n\n" for limit in (most, most // 3)]
        for heading, text, label, most in (
            ("The step to judge, its state", query.state, "state", style.max_state_chars),
            ("The proposed action", query.action, "action", style.max_action_chars),
        )
    )
    parts = [
        PromptPart("state", states[0], _CUT_STATE, states[1]),
        PromptPart("action", actions[0], _CUT_ACTION, actions[1]),
    ]
    if style.repetition_flag:
        parts.append(PromptPart("flag", f"Repetition flag: {'set' if query.repeated else 'not set'}.\n\n"))
    return [*parts, PromptPart("question", style.reply)]
