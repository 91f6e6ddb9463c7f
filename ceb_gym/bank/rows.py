"""From values to rows and back: the one place where content is checked, cleaned and hashed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from itertools import pairwise
from typing import Any

from ceb_gym.errors import BankError
from ceb_gym.text import clean_text
from ceb_gym.types import Record, Step, Trajectory, Vote

MAX_NAME_CHARS = 300
"""Scopes, ids and setting names are indexed; PostgreSQL's index entries hold no more than this, twice."""

_INT_LIMIT = 2**31
_SEED_LIMIT = 2**63
_STEP_FIELDS = tuple(field.name for field in fields(Step))
_make_record: Callable[..., Record] = Record

Row = dict[str, Any]


def checked_name(name: str, what: str) -> str:
    """Returns the name of a scope, episode or setting as it is.

    Cleaning it instead could make two different names equal, and so mix two scopes.

    Raises:
        BankError: If it is no text, too long, or holds NUL or a lone surrogate.
    """
    if not isinstance(name, str):
        raise BankError(f"{what} must be text, not {name!r}.")
    if len(name) > MAX_NAME_CHARS:
        raise BankError(
            f"{what} {name[:40]!r}... has {len(name)} characters; a bank takes at most {MAX_NAME_CHARS}."
        )
    if clean_text(name) != name:
        raise BankError(f"{what} {name!r} holds NUL or a lone surrogate, which no bank can store: rename it.")
    return name


def checked_text(text: str, what: str) -> str:
    """Returns the text cleaned for storing."""
    if not isinstance(text, str):
        raise BankError(f"{what} must be text, not {type(text).__name__}.")
    return clean_text(text)


def checked_number(value: Any, what: str, *, unit_interval: bool = False) -> float:
    """Returns a finite float; zero without a sign, because SQLite does not keep it.

    Raises:
        BankError: If it is no number, not finite, or outside [0, 1] where that is asked for.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BankError(f"{what} is {value!r}, which is no number that a bank can store.") from error
    if not math.isfinite(number):
        raise BankError(f"{what} is {number}; a bank stores finite numbers only, so nothing was written.")
    if unit_interval and not 0.0 <= number <= 1.0:
        raise BankError(f"{what} is {number}, outside [0, 1]; nothing was written.")
    return number + 0.0


def optional_number(value: Any, what: str, *, unit_interval: bool = False) -> float | None:
    """Like `checked_number`, but lets None through."""
    return None if value is None else checked_number(value, what, unit_interval=unit_interval)


def checked_int(value: Any, what: str, *, low: int = 0, limit: int = _INT_LIMIT) -> int:
    """Returns an int in [low, limit)."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BankError(f"{what} is {value!r}, not an integer.") from error
    if number != value or not low <= number < limit:
        raise BankError(f"{what} is {value!r}; a bank takes integers from {low} to {limit - 1}.")
    return number


def features_to_text(features: Mapping[str, float], what: str) -> str | None:
    """Returns features as JSON with sorted names, None for none."""
    if not features:
        return None
    clean = {
        checked_text(name, what): checked_number(features[name], f"{what} {name!r}") for name in features
    }
    return json.dumps(clean, sort_keys=True)


def features_from_text(text: str | None) -> dict[str, float]:
    """Reverses `features_to_text`."""
    features: dict[str, float] = {} if text is None else json.loads(text)
    return features


def content_digest(content: Any) -> str:
    """Returns the SHA-256 of plain content (dicts, lists, texts, numbers), as 64 hexadecimal digits."""
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def step_to_row(step: Step, where: str) -> Row:
    """Returns the columns of `step` without `trajectory_id`."""
    at = f"step {step.index} of {where}"
    return {
        "step_index": checked_int(step.index, f"The index of {at}"),
        "state": checked_text(step.state, f"The state of {at}"),
        "proposed": checked_text(step.proposed, f"The proposed action of {at}"),
        "action": checked_text(step.action, f"The action of {at}"),
        "outcome": None if step.outcome is None else checked_text(step.outcome, f"The outcome of {at}"),
        "reward": optional_number(step.reward, f"The reward of {at}"),
        "executed": bool(step.executed),
        "confidence": optional_number(step.confidence, f"The confidence of {at}", unit_interval=True),
        "decision": checked_text(step.decision, f"The decision of {at}"),
        "reason": checked_text(step.reason, f"The reason of {at}"),
        "propensity": checked_number(step.propensity, f"The propensity of {at}", unit_interval=True),
        "repeated": bool(step.repeated),
        "critic": checked_text(step.critic, f"The critic of {at}"),
        "features": features_to_text(step.features, f"A feature of {at}"),
        "rationale": checked_text(step.rationale, f"The rationale of {at}"),
    }


def step_from_row(row: Sequence[Any]) -> Step:
    """Returns the step of a row in the order of `schema.STEP_COLUMNS`."""
    values = dict(zip(_STEP_FIELDS, row, strict=True))
    return Step(**{**values, "features": features_from_text(values["features"])})


def trajectory_to_rows(trajectory: Trajectory) -> tuple[Row, list[Row]]:
    """Returns the row of `trajectory` (without status and claim) and those of its steps."""
    episode = checked_name(trajectory.episode_id, "Episode id")
    where = f"episode {episode!r}"
    steps = [step_to_row(step, where) for step in trajectory.steps]
    indices = [row["step_index"] for row in steps]
    if any(later <= earlier for earlier, later in pairwise(indices)):
        raise BankError(f"The step indices of {where} do not rise: {indices}.")
    head: Row = {
        "episode_id": episode,
        "segment": checked_int(trajectory.segment, f"The segment of {where}"),
        "scope": checked_name(trajectory.scope, "Scope"),
        "env_id": checked_text(trajectory.env_id, f"The env_id of {where}"),
        "task": checked_text(trajectory.task, f"The task of {where}"),
        "ending": checked_text(trajectory.ending, f"The ending of {where}"),
        "success": None if trajectory.success is None else bool(trajectory.success),
        "initial_reward": optional_number(trajectory.initial_reward, f"The initial reward of {where}"),
        "created_at": checked_number(trajectory.created_at, f"The time of {where}"),
    }
    head["digest"] = content_digest([head, steps])
    head["finished"] = trajectory.ending in ("terminated", "truncated")
    head["first_step"] = indices[0] if indices else 0
    head["last_step"] = indices[-1] if indices else -1
    rewards = [row["reward"] for row in steps if row["executed"] and row["reward"] is not None]
    head["rewards"] = json.dumps(rewards)
    return head, steps


def vote_to_row(vote: Vote, step_index: int, position: int) -> Row:
    """Returns the columns of `vote` without `labeling_id`."""
    at = f"vote {position} on step {step_index}"
    seed = vote.seed
    if seed is not None:
        seed = checked_int(seed, f"The seed of {at}", low=-_SEED_LIMIT, limit=_SEED_LIMIT)
    return {
        "step_index": step_index,
        "position": position,
        "seed": seed,
        "model": checked_text(vote.model, f"The model of {at}"),
        "label": None if vote.label is None else bool(vote.label),
        "text": checked_text(vote.text, f"The text of {at}"),
    }


def labeling_number(record_id: str, episode_id: str, step_index: int) -> int:
    """Returns the last part of a record id, which is `episode:step:labeling`."""
    start = f"{episode_id}:{step_index}:"
    number = record_id[len(start) :]
    if not record_id.startswith(start) or not (number.isascii() and number.isdigit() and len(number) < 10):
        raise BankError(f"Record id {record_id[:400]!r} is not of the form '{start[:400]}NUMBER'.")
    return int(number)


def record_to_row(record: Record) -> Row:
    """Returns the columns of `record` without its revisions, checked and with the content's digest."""
    episode = checked_name(record.episode_id, "Episode id")
    at = f"record {record.record_id!r:.400}"
    step_index = checked_int(record.step_index, f"The step index of {at}")
    row: Row = {
        "record_id": record.record_id,
        "scope": checked_name(record.scope, "Scope"),
        "episode_id": episode,
        "step_index": step_index,
        "task": checked_text(record.task, f"The task of {at}"),
        "state": checked_text(record.state, f"The state of {at}"),
        "action": checked_text(record.action, f"The action of {at}"),
        "outcome": checked_text(record.outcome, f"The outcome of {at}"),
        "label": bool(record.label),
        "vote_share": checked_number(record.vote_share, f"The vote share of {at}", unit_interval=True),
        "votes": checked_int(record.votes, f"The number of votes of {at}"),
        "confidence": optional_number(record.confidence, f"The confidence of {at}", unit_interval=True),
        "agrees": None if record.agrees is None else bool(record.agrees),
        "repeated": bool(record.repeated),
        "critic": checked_text(record.critic, f"The critic of {at}"),
        "labeler": checked_text(record.labeler, f"The labeler of {at}"),
        "created_at": checked_number(record.created_at, f"The time of {at}"),
        "features": features_to_text(record.features, f"A feature of {at}"),
    }
    row["digest"] = content_digest(row)
    row["labeling"] = labeling_number(record.record_id, episode, step_index)
    return row


def record_from_row(row: Sequence[Any]) -> Record:
    """Returns the record of a row in the order of `schema.RECORD_COLUMNS`."""
    *values, features = row
    return _make_record(*values, features_from_text(features))


class DigestChain:
    """The digest of a revision: of the one before it and of all that it adds and removes, in that order.

    Args:
        previous: Digest of the revision before; "" for the first.
    """

    def __init__(self, previous: str):
        self._hash = sha256(previous.encode())

    def add(self, record_id: str, digest: str) -> None:
        """Takes in an added record by its content digest, in commit order."""
        self._hash.update(f"\n+{record_id} {digest}".encode())

    def remove(self, record_id: str, digest: str) -> None:
        """Takes in a removed record, sorted by id."""
        self._hash.update(f"\n-{record_id} {digest}".encode())

    def hexdigest(self) -> str:
        """Returns the digest so far."""
        return self._hash.hexdigest()
