"""Reviewers with a time limit: a reviewer that raises, is late or answers nonsense defers the action."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Reviewer
from ceb_gym.text import shorten
from ceb_gym.types import Decision, Precedents, Query, Verdict

ReviewFunction = Callable[[Query, Verdict, Precedents], Any]
_SHOWN_CHARS = 300


class TimedReviewer:
    """Asks a reviewer on a thread of its own and waits no longer than the limit.

    Args:
        reviewer: An object with `review`, or a callable with the same arguments. It returns a Decision, or
            True (execute) or False (defer).
        timeout_s: Seconds to wait for the answer; infinity waits as long as the platform can.
    """

    def __init__(self, reviewer: Reviewer | ReviewFunction, timeout_s: float = 30.0) -> None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ConfigurationError(f"review_timeout_s is {timeout_s!r}: give a number of seconds above 0.")
        if isinstance(reviewer, type):
            raise ConfigurationError(f"The reviewer {reviewer!r} is a class: pass an instance of it.")
        review = reviewer.review if isinstance(reviewer, Reviewer) else reviewer
        if not callable(review):
            raise ConfigurationError(f"The reviewer {reviewer!r} is neither callable nor has `review`.")
        self._review: ReviewFunction = review
        self._timeout_s = float(timeout_s)

    def review(self, query: Query, verdict: Verdict, precedents: Precedents) -> Decision:
        """Returns the reviewer's decision, or "defer" with the reason why there is none."""
        answer: list[Any] = []

        def ask() -> None:
            try:
                answer.append(self._review(query, verdict, precedents))
            except BaseException as error:  # foreign code, SystemExit too: whatever it raises defers
                raised = f"the reviewer raised {type(error).__name__}: {_shown(str, error)}"
                answer.append(Decision("defer", raised))

        thread = threading.Thread(target=ask, name="ceb-reviewer", daemon=True)
        thread.start()
        thread.join(min(self._timeout_s, threading.TIMEOUT_MAX))
        if not answer:
            return Decision("defer", f"the reviewer gave no answer in {self._timeout_s:g} s")
        return _as_decision(answer[0])


def _shown(render: Callable[[Any], str], value: Any) -> str:
    """Foreign words for a reason: never long, and never an error of their own."""
    try:
        return shorten(str(render(value)), _SHOWN_CHARS)
    except Exception:
        return f"[{type(value).__name__}]"


def _as_decision(answer: Any) -> Decision:
    if isinstance(answer, bool | np.bool_):
        return Decision("execute" if answer else "defer", "the reviewer's decision")
    if isinstance(answer, Decision) and answer.kind in ("execute", "defer", "modify", "terminate"):
        if answer.kind == "modify" and answer.action is None:
            return Decision("defer", "the reviewer asked to modify the action but gave no replacement")
        reason = _shown(str, answer.reason or "the reviewer's decision")
        return Decision(answer.kind, reason, answer.action)
    return Decision("defer", f"the reviewer answered {_shown(repr, answer)}, which is no decision")
