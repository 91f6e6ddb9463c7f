"""Reads what language models write: JSON objects among other text, scores on any scale, labels."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

ScoreRange = Literal["auto", "paper", "percent"]

_DECODER = json.JSONDecoder()
_NUMBER = r"[-+]?(?:\d+(?:[.,]\d+)?|[.,]\d+)(?:[eE][-+]?\d+)?"
_PLAIN = re.compile(rf"({_NUMBER})\s*(%|percent)?", re.IGNORECASE)
_FRACTION = re.compile(rf"({_NUMBER})\s*(?:/|out of)\s*({_NUMBER})", re.IGNORECASE)
_CLIPPED_BELOW, _CLIPPED_ABOVE = -0.5, 1.5
_AMBIGUOUS_UP_TO = 10.0  # 7 may be of 10 or of 100: only above is it plainly a percentage
_THOUSANDS = re.compile(r"[1-9]\d*,\d{3}\b")  # 1,000 may be one or a thousand
_TRUE = frozenset({"true", "yes", "productive", "1"})
_FALSE = frozenset({"false", "no", "unproductive", "0"})


@dataclass(frozen=True, slots=True)
class ReadScore:
    """A score as it was read.

    Attributes:
        score: In [0, 1]; None when it cannot be read.
        clipped: Whether it lay outside.
        note: What was done with it, or why it cannot be read; "" for a plain one.
    """

    score: float | None
    clipped: bool = False
    note: str = ""


def first_json_object(text: str, field: str) -> dict[str, Any] | None:
    """Returns the first complete JSON object that has the field; None where there is none.

    What a model thought before it answered (`<think>...</think>`) is passed over, as are fences and words
    around the object. An answer that was cut off has none.
    """
    return next((found for found in _objects(_answer(text)) if field in found), None)


def _answer(text: str) -> str:
    """The text after the thoughts; "" where they were cut off. An answer may itself quote the tag."""
    if text.lstrip().startswith(("{", "`")):
        return text
    _, thought, answer = text.rpartition("</think>")
    return "" if not thought and "<think>" in text else answer


def _objects(text: str) -> Iterator[dict[str, Any]]:
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield value
        start = text.find("{", start + 1)


def read_score(value: Any, *, score_range: ScoreRange = "auto") -> ReadScore:
    """Reads a score that a model gave as a number or as text.

    Args:
        value: As decoded from JSON.
        score_range: "auto" takes [0, 1], clips [-0.5, 1.5], reads percentages (`85%`, and numbers above 10 up
            to 100) and fractions (`8/10`, `8 out of 10`) by their own scale, and leaves all else unread.
            "paper" clips every number. "percent" divides every plain number by 100, whatever it is.

    Returns:
        The score; unread for NaN, infinities, booleans, null, lists, and text that is more than a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ReadScore(None, note=f"{_shown(value)} is no number")
    if isinstance(value, str):
        return _read_text(value.strip().strip("\"'`"), score_range)
    try:
        return _on_scale(float(value), score_range)
    except OverflowError:
        return ReadScore(None, note=f"{_shown(value)} is too large")


def _read_text(text: str, score_range: ScoreRange) -> ReadScore:
    if found := _FRACTION.fullmatch(text):
        part, whole = (_number(group) for group in found.groups())
        if whole > 0 and 0 <= part <= whole:
            return ReadScore(part / whole, note=f"read {_shown(text)} as a fraction")
        return ReadScore(None, note=f"{_shown(text)} is no share")
    found = _PLAIN.fullmatch(text)
    if found is None or _THOUSANDS.search(text):
        return ReadScore(None, note=f"{_shown(text)} is not one number")
    number = _number(found[1])
    if not found[2]:
        return _on_scale(number, score_range)
    if not 0 <= number <= 100:
        return ReadScore(None, note=f"{_shown(text)} is no share")
    return ReadScore(number / 100, note=f"read {_shown(text)} as a percentage")


def _on_scale(number: float, score_range: ScoreRange) -> ReadScore:
    if not math.isfinite(number):
        return ReadScore(None, note=f"{number} is not finite")
    if score_range == "percent":
        return _clipped(number / 100, number)
    if score_range == "paper" or _CLIPPED_BELOW <= number <= _CLIPPED_ABOVE:
        return _clipped(number, number)
    if _AMBIGUOUS_UP_TO < number <= 100:
        return ReadScore(number / 100, note=f"read {number:g} as a percentage")
    return ReadScore(None, note=f"{number:g} is on no scale that is plain")


def _clipped(score: float, given: float) -> ReadScore:
    inside = min(max(score, 0.0), 1.0)
    return ReadScore(inside, inside != score, f"clipped {given:g}" if inside != score else "")


def _number(text: str) -> float:
    return float(text.replace(",", "."))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_label(value: Any) -> bool | None:
    """Reads a vote: true or false, as JSON, as 0 or 1, or as a plain word; None for all else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return {0.0: False, 1.0: True}.get(value)
    if isinstance(value, str):
        word = value.strip().strip(".\"'`").lower()
        return True if word in _TRUE else False if word in _FALSE else None
    return None
