"""Between JSON objects and values, with every rule of the format.

Faults are raised as `FormatFault` without a place; readers and writers add file and line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NoReturn

from ceb_gym.streams.values import (
    FORMAT_NAME,
    FORMAT_VERSION,
    RecordedEpisode,
    RecordedStep,
    StreamHeader,
)
from ceb_gym.text import clean_text

_HEADER_FIELDS = frozenset({"format", "version", "env_id", "label_rule", "provenance"})
_EPISODE_FIELDS = frozenset(item.name for item in fields(RecordedEpisode))
_STEP_FIELDS = frozenset(item.name for item in fields(RecordedStep))
_SHOWN_CHARS = 60


class FormatFault(ValueError):
    """What is wrong with one line; becomes a StreamError where file and line are known."""


def parse_json(line: str) -> Any:
    """Returns the JSON value of one line.

    Raises:
        FormatFault: If it is no JSON, or uses NaN or Infinity, which JSON does not have.
    """
    try:
        return json.loads(line, parse_constant=_refuse_constant)
    except FormatFault:
        raise
    except json.JSONDecodeError as error:
        raise FormatFault(f"not valid JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise FormatFault(f"JSON that cannot be read: {error}") from error


def dump_json(value: Any) -> str:
    """Returns one line of JSON; the value must come from `header_object` or `episode_object`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def decode_header(value: Any) -> StreamHeader:
    """Returns the header in a parsed first line.

    Raises:
        FormatFault: If it is no header, or one of a newer version.
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT_NAME:
        raise FormatFault(f'not a recorded stream: the first line must be {{"format": "{FORMAT_NAME}", ...}}')
    version = value.get("version")
    if type(version) is not int or version < 1:
        raise FormatFault(f"version must be a whole number from 1, got {_shown(version)}")
    if version > FORMAT_VERSION:
        raise FormatFault(
            f"the stream has version {version}, this ceb_gym reads up to {FORMAT_VERSION}; upgrade ceb-gym"
        )
    _refuse_unknown(value, _HEADER_FIELDS, "the header", "provenance")
    rule = value.get("label_rule")
    return StreamHeader(
        env_id=_name(value, "env_id", "env_id"),
        label_rule=None if rule is None else _name(value, "label_rule", "label_rule"),
        provenance=_json_object(value.get("provenance", {}), "provenance"),
    )


def decode_episode(value: Any) -> RecordedEpisode:
    """Returns the episode in a parsed line, its texts cleaned.

    Raises:
        FormatFault: If a field is missing, unknown, of the wrong type or not finite.
    """
    if not isinstance(value, dict):
        raise FormatFault(f"an episode must be a JSON object, got {_shown(value)}")
    _refuse_unknown(value, _EPISODE_FIELDS, "the episode", "metadata")
    steps = _need(value, "steps", "steps")
    if not isinstance(steps, list):
        raise FormatFault(f"steps must be a list, got {_shown(steps)}")
    if not steps:
        raise FormatFault("steps is empty; leave episodes without a step out")
    initial = value.get("initial_reward")
    return RecordedEpisode(
        episode_id=_name(value, "episode_id", "episode_id"),
        task=_text(value, "task", "task"),
        steps=tuple(_decode_step(step, f"steps[{index}]") for index, step in enumerate(steps)),
        initial_reward=None if initial is None else finite_number(initial, "initial_reward"),
        success=_flag(value.get("success"), "success"),
        metadata=_json_object(value.get("metadata", {}), "metadata"),
    )


def header_object(header: StreamHeader) -> dict[str, Any]:
    """Returns the header as JSON can hold it, checked by the reader's own rules."""
    checked = decode_header(
        {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "env_id": header.env_id,
            "label_rule": header.label_rule,
            "provenance": header.provenance,
        }
    )
    return {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "env_id": checked.env_id,
        "label_rule": checked.label_rule,
        "provenance": checked.provenance,
    }


def episode_object(episode: RecordedEpisode) -> dict[str, Any]:
    """Returns the episode as JSON can hold it, checked by the reader's own rules.

    Optional fields that say nothing are left out of the line.
    """
    raw = _field_values(episode)
    raw["steps"] = [_step_object(step) for step in episode.steps]
    checked = _field_values(decode_episode(raw))
    checked["steps"] = [_step_object(step) for step in checked["steps"]]
    return _without_empty(checked, ("initial_reward", "success", "metadata"))


def finite_number(value: Any, where: str) -> float:
    """Returns a JSON number as a float.

    Raises:
        FormatFault: If it is no number, or not finite as a float.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FormatFault(f"{where} must be a number, got {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise FormatFault(f"{where} must be finite, got {_shown(value)}")
    return number


def _decode_step(value: Any, where: str) -> RecordedStep:
    if not isinstance(value, dict):
        raise FormatFault(f"{where} must be a JSON object, got {_shown(value)}")
    _refuse_unknown(value, _STEP_FIELDS, where, f"{where}.metadata")
    logprobs = value.get("logprobs")
    if logprobs is not None and not isinstance(logprobs, list):
        raise FormatFault(f"{where}.logprobs must be a list of numbers or null, got {_shown(logprobs)}")
    return RecordedStep(
        state=_text(value, "state", f"{where}.state"),
        action=_text(value, "action", f"{where}.action"),
        outcome=_text(value, "outcome", f"{where}.outcome"),
        reward=finite_number(_need(value, "reward", f"{where}.reward"), f"{where}.reward"),
        label=_flag(value.get("label"), f"{where}.label"),
        logprobs=None
        if logprobs is None
        else tuple(finite_number(item, f"{where}.logprobs[{i}]") for i, item in enumerate(logprobs)),
        metadata=_json_object(value.get("metadata", {}), f"{where}.metadata"),
    )


def _step_object(step: RecordedStep) -> dict[str, Any]:
    value = _field_values(step)
    if step.logprobs is not None:
        value["logprobs"] = list(step.logprobs)
    return _without_empty(value, ("label", "logprobs", "metadata"))


def _field_values(value: RecordedEpisode | RecordedStep) -> dict[str, Any]:
    return {item.name: getattr(value, item.name) for item in fields(value)}


def _without_empty(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {
        key: item
        for key, item in value.items()
        if key not in names or (item is not None and not (key == "metadata" and not item))
    }


def _need(value: dict[str, Any], key: str, where: str) -> Any:
    if key not in value:
        raise FormatFault(f"{where} is missing")
    return value[key]


def _text(value: dict[str, Any], key: str, where: str) -> str:
    text = _need(value, key, where)
    if not isinstance(text, str):
        raise FormatFault(f"{where} must be a string, got {_shown(text)}")
    return clean_text(text)


def _name(value: dict[str, Any], key: str, where: str) -> str:
    text = _text(value, key, where)
    if not text:
        raise FormatFault(f"{where} must not be empty")
    return text


def _flag(value: Any, where: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise FormatFault(f"{where} must be true, false or null, got {_shown(value)}")
    return value


def _json_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise FormatFault(f"{where} must be a JSON object, got {_shown(value)}")
    return {_key(key, where): _json_value(item, f"{where}.{key}") for key, item in value.items()}


def _json_value(value: Any, where: str) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return finite_number(value, where)
    if isinstance(value, (list, tuple)):
        return [_json_value(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return _json_object(value, where)
    raise FormatFault(f"{where} cannot be written as JSON: {_shown(value)}")


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise FormatFault(f"{where} has the key {_shown(key)}; keys must be strings")
    return clean_text(key)


def _refuse_unknown(value: dict[str, Any], known: frozenset[str], where: str, free: str) -> None:
    unknown = sorted(set(value) - known)
    if unknown:
        raise FormatFault(
            f"{where} has the unknown field {_shown(unknown[0])}; known are {', '.join(sorted(known))}. "
            f"Put anything else under {free}"
        )


def _refuse_constant(name: str) -> NoReturn:
    raise FormatFault(f"{name} is no JSON number; rewards and log-probabilities must be finite")


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or isinstance(value, bool) else _shown_int(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _shown_int(value: int) -> str:
    # repr refuses whole numbers of more than 4,300 digits.
    return repr(value) if value.bit_length() < 4096 else f"a whole number of {value.bit_length()} bits"
