"""Numbers computed from a query at judgement, stored with the step, for critics that learn from them.

All are known before the action runs. Words are runs of two or more word characters, lower case; overlaps are
shared words divided by all words of both texts, in [0, 1].
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from ceb_gym.types import HistoryItem, Precedent, Precedents, Query

FEATURES_VERSION = 2
VERSION_KEY = "features_version"
LOOP_WINDOW = 3
_OUTCOME_CHARS = 2_000
_NEAREST = 3

_WORD = re.compile(r"\w\w+")
_PATH = re.compile(r"/[\w./-]+")
_ERROR = re.compile(
    r"error|exception|traceback|not found|no such|cannot|can't|unable|invalid|denied|usage:|unrecognized|"
    r"unknown|missing|syntax|illegal|failed|failure|malformed",
    re.IGNORECASE,
)


def is_repeated(action: str, earlier_actions: Sequence[str]) -> bool:
    """The repetition flag: whether the action is a prefix of one of the last three (arXiv 2607.12397).

    An empty action is a prefix of everything; it only counts as repeated after another empty one.
    """
    recent = earlier_actions[-LOOP_WINDOW:]
    return any(earlier.startswith(action) and (action != "" or earlier == "") for earlier in recent)


def step_features(query: Query) -> dict[str, float]:
    """The few features that are stored with every step.

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


def query_features(query: Query, precedents: Precedents, critic: str) -> dict[str, float]:
    """All features of version `FEATURES_VERSION`, about the action, its history, its task and precedents.

    Past scores count only where they are those of the named critic.
    """
    groups = _features_by_group(query, precedents, critic)
    return {
        VERSION_KEY: float(FEATURES_VERSION),
        **{k: v for group in groups.values() for k, v in group.items()},
    }


@lru_cache(maxsize=1)
def feature_groups() -> dict[str, tuple[str, ...]]:
    """The names of all features by what they are about, in the order of `query_features`.

    Returns:
        `position` in the episode and exact repeats, the `action` beside the task, `loops` (the action beside
        earlier ones), `outcomes` so far, and `precedents`.
    """
    query = Query("", "", 0, "", "", "", "", (), False, 0)
    return {group: tuple(found) for group, found in _features_by_group(query, Precedents(), "").items()}


def _features_by_group(query: Query, precedents: Precedents, critic: str) -> dict[str, dict[str, float]]:
    return {
        "position": step_features(query),
        "action": _action_features(query),
        "loops": _loop_features(query),
        "outcomes": _outcome_features(query),
        "precedents": _precedent_features(query, precedents, critic),
    }


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


@lru_cache(maxsize=4096)
def _is_error(outcome: str) -> bool:
    return _ERROR.search(outcome) is not None


def _overlap(left: frozenset[str], right: frozenset[str]) -> float:
    return len(left & right) / max(1, len(left | right))


def _family(action: str) -> str:
    first = _WORD.search(action)
    return first.group().lower() if first else ""


def _outcome(item: HistoryItem) -> str:
    return (item.outcome or "")[:_OUTCOME_CHARS]


def _action_features(query: Query) -> dict[str, float]:
    """About the action itself and what it shares with the task."""
    action, task = _words(query.action), _words(query.task)
    shared = len(action & task)
    return {
        "action_length": math.log1p(len(query.action)),
        "action_words": float(len(action)),
        "action_pipes": float(query.action.count("|")),
        "action_quotes": float(query.action.count('"') + query.action.count("'")),
        "action_redirects": float(">" in query.action),
        "task_words": float(len(task)),
        "task_covered": shared / max(1, len(task)),
        "action_from_task": shared / max(1, len(action)),
    }


def _loop_features(query: Query) -> dict[str, float]:
    """About the action beside the earlier ones of the episode."""
    words = _words(query.action)
    earlier = [_words(item.action) for item in query.history]
    overlaps = [_overlap(words, other) for other in earlier]
    last_action = query.history[-1].action if query.history else ""
    last = earlier[-1] if earlier else frozenset()
    seen = frozenset().union(*earlier)
    paths = {path for item in query.history for path in _PATH.findall(item.action)}
    growth = math.log1p(len(query.action)) - math.log1p(len(last_action)) if earlier else 0.0
    return {
        "equal_before": float(sum(item.action == query.action for item in query.history)),
        "overlap_last": overlaps[-1] if overlaps else 0.0,
        "overlap_second": overlaps[-2] if len(overlaps) > 1 else 0.0,
        "overlap_best": max(overlaps, default=0.0),
        "overlap_older": max(overlaps[:-1], default=0.0),
        "words_added": float(len(words - last)) if earlier else 0.0,
        "words_removed": float(len(last - words)) if earlier else 0.0,
        "new_words": len(words - seen) / max(1, len(words)),
        "new_paths": float(len(set(_PATH.findall(query.action)) - paths)),
        "length_growth": growth,
        "same_family": float(bool(earlier) and _family(query.action) == _family(last_action)),
    }


def _outcome_features(query: Query) -> dict[str, float]:
    """About what the episode has shown so far."""
    outcomes = [_outcome(item) for item in query.history]
    errors = [float(_is_error(outcome)) for outcome in outcomes]
    empties = [float(not outcome.strip()) for outcome in outcomes]
    last = outcomes[-1] if outcomes else ""
    before = outcomes[-2] if len(outcomes) > 1 else None
    task = _words(query.task)
    return {
        "last_error": errors[-1] if errors else 0.0,
        "last_empty": empties[-1] if empties else 0.0,
        "last_length": math.log1p(len(last)),
        "last_unchanged": float(before == last),
        "last_growth": 0.0 if before is None else math.log1p(len(last)) - math.log1p(len(before)),
        "last_overlap": 0.0 if before is None else _overlap(_words(last), _words(before)),
        "last_seen_before": float(last in outcomes[:-1]),
        "last_on_task": len(_words(last) & task) / max(1, len(task)),
        "errors": sum(errors),
        "empties": sum(empties),
        "error_share": sum(errors) / max(1, len(errors)),
        "error_turn": errors[-1] - sum(errors[:-1]) / (len(errors) - 1) if len(errors) > 1 else 0.0,
        "empty_turn": empties[-1] - sum(empties[:-1]) / (len(empties) - 1) if len(empties) > 1 else 0.0,
        "distinct_outcomes": len(set(outcomes)) / max(1, len(outcomes)),
        **_nearest_features(query, outcomes, errors, empties),
    }


def _nearest_features(
    query: Query, outcomes: Sequence[str], errors: Sequence[float], empties: Sequence[float]
) -> dict[str, float]:
    """About what the most similar earlier action of the episode led to."""
    names = ("nearest_error", "nearest_empty", "nearest_age", "nearest_same_outcome")
    if not query.history:
        return dict.fromkeys(names, 0.0)
    words = _words(query.action)
    nearest = max(
        range(len(query.history)),
        key=lambda index: (_overlap(words, _words(query.history[index].action)), index),
    )
    age = float(len(query.history) - nearest)
    same = float(outcomes[nearest] == outcomes[-1])
    return dict(zip(names, (errors[nearest], empties[nearest], age, same), strict=True))


def _precedent_features(query: Query, precedents: Precedents, critic: str) -> dict[str, float]:
    """About similar steps of earlier episodes."""
    productive, unproductive = precedents.productive, precedents.unproductive
    near, far = _mean_similarity(productive), _mean_similarity(unproductive)
    words = _words(query.action)
    like = [
        max((_overlap(words, _words(p.record.action)) for p in side), default=0.0)
        for side in (productive, unproductive)
    ]
    same = [
        [p.similarity for p in side if p.record.task == query.task] for side in (productive, unproductive)
    ]
    return {
        "near_productive": near,
        "near_unproductive": far,
        "near_difference": near - far,
        "like_productive": like[0],
        "like_unproductive": like[1],
        "like_difference": like[0] - like[1],
        "task_productive": float(len(same[0])),
        "task_unproductive": float(len(same[1])),
        "task_near_productive": max(same[0], default=0.0),
        "task_near_unproductive": max(same[1], default=0.0),
        "task_near_difference": max(same[0], default=0.0) - max(same[1], default=0.0),
        "score_productive": _mean_score(productive, critic),
        "score_unproductive": _mean_score(unproductive, critic),
    }


def _mean_similarity(precedents: Sequence[Precedent]) -> float:
    nearest = [precedent.similarity for precedent in precedents[:_NEAREST]]
    return sum(nearest) / len(nearest) if nearest else 0.0


def _mean_score(precedents: Sequence[Precedent], critic: str) -> float:
    """Mean past score that the critic gave the nearest precedents; 0.5 where it gave none."""
    scores = [
        precedent.record.confidence
        for precedent in precedents[:_NEAREST]
        if precedent.record.confidence is not None and precedent.record.critic == critic
    ]
    return sum(scores) / len(scores) if scores else 0.5
