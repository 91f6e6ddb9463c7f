"""Whether what a critic returned is a verdict for each query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ceb_gym.errors import CriticError
from ceb_gym.protocols import Critic
from ceb_gym.types import Verdict


def checked_verdicts(critic: Critic, verdicts: Sequence[Verdict], count: int) -> list[Verdict]:
    """Returns the verdicts as plain Python numbers.

    Raises:
        CriticError: If there are not `count` of them, or a confidence is no number in [0, 1].
    """
    check_count(critic, verdicts, count)
    return [checked_verdict(critic, verdict) for verdict in verdicts]


def check_count(critic: Critic, verdicts: Sequence[Verdict], count: int) -> None:
    """Raises CriticError where the answer is no list of `count` things."""
    if not isinstance(verdicts, Sequence):
        raise CriticError(f"Critic {critic.name} returned {verdicts!r}, which is no list of verdicts.")
    if len(verdicts) != count:
        raise CriticError(f"Critic {critic.name} gave {len(verdicts)} verdicts for {count} queries.")


def checked_verdict(critic: Critic, verdict: Verdict) -> Verdict:
    """Returns the verdict with a plain float and a source. Raises CriticError where it is none."""
    if not isinstance(verdict, Verdict):
        raise CriticError(f"Critic {critic.name} returned {verdict!r}, which is no Verdict.")
    if not isinstance(verdict.rationale, str) or not isinstance(verdict.source, str):
        raise CriticError(
            f"Critic {critic.name} returned the rationale {verdict.rationale!r} and the source "
            f"{verdict.source!r}: both must be text."
        )
    confidence = verdict.confidence
    if confidence is not None:
        number = _as_number(confidence)
        if not 0.0 <= number <= 1.0:
            raise CriticError(
                f"Critic {critic.name} returned the confidence {confidence!r}: it must be a number "
                "in [0, 1], or None for unscored."
            )
        if type(confidence) is float and verdict.source:
            return verdict
        confidence = number
    return replace(verdict, confidence=confidence, source=verdict.source or critic.name)


def _as_number(value: Any) -> float:
    """A float, or NaN for what is none; text and truth values are none, though `float` takes them."""
    if isinstance(value, str | bytes | bool | np.bool_):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
