"""Imports single agent decisions on AMEX episodes, labelled by people, as a recorded stream."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from ceb_gym.errors import ConfigurationError, StreamError
from ceb_gym.streams.codec import FormatFault
from ceb_gym.streams.intercode import ImportedRuns
from ceb_gym.streams.values import SOURCE_EPISODE, RecordedEpisode, RecordedStep, StreamHeader
from ceb_gym.text import clean_text

ENV_ID: Final = "amex"

_STEP_NUMBER = re.compile(r"Step \d+:\s*")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SHOWN_CHARS = 60


def import_amex_decisions(path: Path) -> ImportedRuns:
    """Reads decisions: JSON Lines of episode_id, step, instruction, history, action and correct.

    Each decision becomes a recorded episode of its own, since it was taken after the history as recorded and
    not after the other decisions on the same AMEX episode. The history's steps come first, without outcome,
    reward or label; the decision is the last step, with `correct` as its label. A step's state is the
    description of the step before it: there are no screenshots. The AMEX episode is kept in the metadata, so
    that decisions which share one are neither resampled nor learned from apart.

    Args:
        path: The file.

    Raises:
        ConfigurationError: If there is no such file.
        StreamError: If a line is broken or contradicts an earlier one; it names file and line.
    """
    content = _read(path)
    first_lines: dict[tuple[str, int, str], tuple[int, bool]] = {}
    counts: Counter[str] = Counter()
    episodes: list[RecordedEpisode] = []
    repeated = other_history = 0
    for number, value in _decisions(path, content):
        episode = _checked(path, number, value, counts)
        decision = episode.steps[-1]
        key = (value["episode_id"], value["step"], decision.action)
        first, label = first_lines.setdefault(key, (number, value["correct"]))
        if label != value["correct"]:
            raise StreamError(
                f"{path}:{number}: the same decision as in line {first} with the other label; remove the "
                "wrong one."
            )
        if first != number:
            repeated += 1
            continue
        counts[_place(value)] += 1
        other_history += value["step"] != len(value["history"])
        episodes.append(episode)
    if not episodes:
        raise StreamError(f"{path}:1: the file holds no decision.")
    notes = []
    if repeated:
        notes.append(f"Decisions that stand in the file twice, taken once: {repeated}.")
    if other_history:
        notes.append(f"Decisions whose step is not the length of their history: {other_history}.")
    provenance = {"importer": "amex-decisions", "sha256": {path.name: hashlib.sha256(content).hexdigest()}}
    return ImportedRuns(StreamHeader(ENV_ID, None, provenance), tuple(episodes), tuple(notes))


def _read(path: Path) -> bytes:
    if not path.exists():
        raise ConfigurationError(f"{path}: no such file; give the JSON Lines file of decisions.")
    if not path.is_file():
        raise ConfigurationError(f"{path}: not a regular file; give the JSON Lines file of decisions.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise StreamError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decisions(path: Path, content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields line number and object of each line; only a line feed ends one: texts may hold U+2028."""
    for number, line in enumerate(content.removeprefix(_BYTE_ORDER_MARK).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(
                line.decode("utf-8"), object_pairs_hook=_object_of, parse_constant=_refuse_constant
            )
        except UnicodeDecodeError as error:
            raise StreamError(f"{path}:{number}: not UTF-8 text: {error.reason}.") from error
        except json.JSONDecodeError as error:
            raise StreamError(
                f"{path}:{number}: not valid JSON: {error.msg} at column {error.colno}."
            ) from error
        except (ValueError, RecursionError) as error:
            raise StreamError(f"{path}:{number}: {error}.") from error
        if not isinstance(value, dict):
            raise StreamError(f"{path}:{number}: a decision must be a JSON object, got {_shown(value)}.")
        yield number, value


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise FormatFault(f"the key {key[:_SHOWN_CHARS]!r} is given twice, so which holds is not known")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise FormatFault(f"{name} is no JSON number")


def _checked(path: Path, number: int, value: dict[str, Any], counts: Counter[str]) -> RecordedEpisode:
    try:
        return _episode(value, counts)
    except (FormatFault, RecursionError) as fault:
        raise StreamError(f"{path}:{number}: {fault}.") from fault


def _episode(value: dict[str, Any], counts: Counter[str]) -> RecordedEpisode:
    source = _field(value, "episode_id", str, "text")
    if not source:
        raise FormatFault("episode_id is empty")
    step = _field(value, "step", int, "a whole number from 0")
    if step < 0:
        raise FormatFault(f"step must be a whole number from 0, got {_shown(step)}")
    history = _field(value, "history", list, "a list of texts")
    if not all(isinstance(text, str) for text in history):
        raise FormatFault("history must be a list of texts")
    action = _action_text(_field(value, "action", dict, "an object"))
    correct = _field(value, "correct", bool, "true or false")
    task = _field(value, "instruction", str, "text")
    done = [clean_text(_STEP_NUMBER.sub("", text, count=1)) for text in history]
    states = ["", *done]
    steps = [RecordedStep(state, text, "", 0.0) for state, text in zip(states, done, strict=False)]
    earlier = counts[_place(value)]  # several decisions may be on record for one step of an AMEX episode
    metadata: dict[str, Any] = {SOURCE_EPISODE: source, "step": step}
    if isinstance(value.get("screenshot"), str):
        metadata["screenshot"] = value["screenshot"]
    return RecordedEpisode(
        episode_id=_place(value) + (f".{earlier + 1}" if earlier else ""),
        task=clean_text(task),
        steps=(*steps, RecordedStep(states[-1], action, "", 0.0, correct)),
        metadata=metadata,
    )


def _place(value: dict[str, Any]) -> str:
    return f"{clean_text(value['episode_id'])}/{value['step']}"


def _field(value: dict[str, Any], name: str, kind: type, wanted: str) -> Any:
    if name not in value:
        raise FormatFault(f"{name} is missing")
    found = value[name]
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise FormatFault(f"{name} must be {wanted}, got {_shown(found)}")
    return found


def _action_text(action: dict[str, Any]) -> str:
    """`click (207, 1646)`, `type cream`, `swipe (702, 2617) (704, 1650)`: the kind, then its values."""
    kind = action.get("action")
    if not isinstance(kind, str) or not kind:
        raise FormatFault(f"action.action must be a text that is not empty, got {_shown(kind)}")
    values = (_value_text(value) for key, value in action.items() if key != "action")
    return clean_text(" ".join((kind, *values)))


def _value_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(item) in (int, float) for item in value):
        return f"({', '.join(json.dumps(item) for item in value)})"
    return json.dumps(value, ensure_ascii=False)


def _shown(value: Any) -> str:
    text = repr(value) if type(value) is not int or value.bit_length() < 64 else "a very large number"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
