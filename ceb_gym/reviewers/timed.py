"""Reviewers with a time limit: a reviewer that raises, is late or answers nonsense defers the action."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Reviewer
from ceb_gym.types import Decision, Precedents, Query, Verdict

ReviewFunction = Callable[[Query, Verdict, Precedents], Any]


class TimedReviewer:
    """Asks a reviewer on a thread of its own and waits no longer than the limit.

    Args:
        reviewer: An object with `review`, or a callable with the same arguments. It returns a Decision, or
            True (execute) or False (defer).
        timeout_s: Seconds to wait for the answer.
    """

    def __init__(self, reviewer: Reviewer | ReviewFunction, timeout_s: float = 30.0) -> None:
        if not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ConfigurationError(f"review_timeout_s is {timeout_s!r}: give a number of seconds above 0.")
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
            except Exception as error:  # a reviewer is foreign code: whatever it raises defers the action
                answer.append(Decision("defer", f"the reviewer raised {type(error).__name__}: {error}"))

        thread = threading.Thread(target=ask, name="ceb-reviewer", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if not answer:
            return Decision("defer", f"the reviewer gave no answer in {self._timeout_s:g} s")
        return _as_decision(answer[0])


def _as_decision(answer: Any) -> Decision:
    if isinstance(answer, bool):
        return Decision("execute" if answer else "defer", "the reviewer's decision")
    if isinstance(answer, Decision) and answer.kind in ("execute", "defer", "modify", "terminate"):
        if answer.kind == "modify" and answer.action is None:
            return Decision("defer", "the reviewer asked to modify the action but gave no replacement")
        return Decision(answer.kind, answer.reason or "the reviewer's decision", answer.action)
    return Decision("defer", f"the reviewer answered {answer!r}, which is no decision")
