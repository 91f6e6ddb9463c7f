"""The prompt of the hindsight votes: the whole episode, and nothing that was thought of it while it ran."""

from __future__ import annotations

from collections.abc import Sequence

from ceb_gym.chat.prompting import FENCE_RULE, RUBRIC, fence
from ceb_gym.chat.values import Message
from ceb_gym.text import shorten
from ceb_gym.types import Step, Trajectory

TASK_CHARS = 4_000
STATE_CHARS = 600
ACTION_CHARS = 1_000
OUTCOME_CHARS = 1_200
OUTLINE_CHARS = 120

_ASKED = (
    "An agent worked on a task. You see its finished episode, step by step: what it saw, what it did, and "
    "what came of it. Say of each step listed under `Judge` whether it was productive, in hindsight.\n\n"
    f"{RUBRIC}\n\n{FENCE_RULE}\n\n"
    'Reply with one JSON object and nothing else: {"labels": [{"step": 0, "productive": true}, ...]}, with '
    "one entry for each step to judge."
)
LABELS_SCHEMA = {
    "type": "object",
    "properties": {
        "labels": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"step": {"type": "integer"}, "productive": {"type": "boolean"}},
                "required": ["step", "productive"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["labels"],
    "additionalProperties": False,
}


def vote_messages(trajectory: Trajectory, judged: Sequence[Step]) -> tuple[Message, ...]:
    """The messages that ask for labels of some steps of an episode.

    Task, states, actions and outcomes are shown; rewards, confidences, labels, precedents and how the episode
    was scored are not. Steps that are not judged here are shown by their actions alone.

    Args:
        trajectory: The whole episode.
        judged: The steps to label, a window of it.
    """
    wanted = {step.index for step in judged}
    shown = [_in_full(step) if step.index in wanted else _outline(step) for step in trajectory.steps]
    numbers = ", ".join(str(step.index) for step in judged)
    text = "\n\n".join(
        [fence(shorten(trajectory.task, TASK_CHARS), "task"), *shown, f"Judge the steps {numbers}."]
    )
    return Message("system", _ASKED), Message("user", text)


def _in_full(step: Step) -> str:
    parts = [
        f"Step {step.index}",
        fence(shorten(step.state, STATE_CHARS), "state"),
        fence(shorten(step.action, ACTION_CHARS), "action"),
        fence(shorten(step.outcome or "", OUTCOME_CHARS), "outcome"),
    ]
    return "\n".join(parts)


def _outline(step: Step) -> str:
    state = "" if step.executed else " (not executed)"
    return f"Step {step.index}{state}\n{fence(shorten(step.action, OUTLINE_CHARS), 'action')}"
