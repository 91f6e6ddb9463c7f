"""Numbers computed from a query at judgement, stored with the step, for critics that learn from them."""

from __future__ import annotations

from collections.abc import Sequence

from ceb_gym.types import Query

FEATURES_VERSION = 1
LOOP_WINDOW = 3


def is_repeated(action: str, earlier_actions: Sequence[str]) -> bool:
    """The repetition flag: whether the action is a prefix of one of the last three (arXiv 2607.12397).

    An empty action is a prefix of everything; it only counts as repeated after another empty one.
    """
    recent = earlier_actions[-LOOP_WINDOW:]
    return any(earlier.startswith(action) and (action != "" or earlier == "") for earlier in recent)


def step_features(query: Query) -> dict[str, float]:
    """Features of version `FEATURES_VERSION`; all are known before the action runs.

    Returns:
        `step_index`: position in the episode, from 0. `exact_repeat`: 1 when the action equals one of the
        last three. `prefix_repeat`: the repetition flag.
    """
    recent = query.history[-LOOP_WINDOW:]
    return {
        "step_index": float(query.step_index),
        "exact_repeat": float(any(item.action == query.action for item in recent)),
        "prefix_repeat": float(query.repeated),
    }
