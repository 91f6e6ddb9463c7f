from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ceb_gym.errors import ConfigurationError
from ceb_gym.reviewers.timed import TimedReviewer
from ceb_gym.types import Decision, Precedents, Query, Verdict

QUERY = Query("env", "scope", 0, "episode", "task", "state", "act", (), False, 0)


def ask(answer: Any, timeout_s: float = 10.0) -> Decision:
    reply = answer if callable(answer) else lambda *arguments: answer
    return TimedReviewer(reply, timeout_s).review(QUERY, Verdict(0.2), Precedents())


def raising(error: BaseException) -> Any:
    def review(*arguments: Any) -> Any:
        raise error

    return review


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """What a hanging reviewer waits for; set at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("truth", [True, np.True_])
def test_true_executes(truth: Any) -> None:
    assert ask(truth).kind == "execute"


@pytest.mark.parametrize("truth", [False, np.False_])
def test_false_defers(truth: Any) -> None:
    assert ask(truth) == Decision("defer", "the reviewer's decision")


@pytest.mark.parametrize("kind", ["execute", "defer", "terminate"])
def test_a_decision_is_passed_on_with_its_reason(kind: Any) -> None:
    assert ask(Decision(kind, "because")) == Decision(kind, "because")


def test_a_replacement_is_passed_on() -> None:
    assert ask(Decision("modify", "safer", "ls")) == Decision("modify", "safer", "ls")


def test_modify_without_a_replacement_defers() -> None:
    decision = ask(Decision("modify", "safer"))
    assert decision.kind == "defer" and "no replacement" in decision.reason


@pytest.mark.parametrize("nonsense", [None, "execute", 1, 0.9, [], Decision("later"), object])  # type: ignore[arg-type]  # on purpose
def test_an_answer_that_is_no_decision_defers_and_is_shown(nonsense: Any) -> None:
    decision = ask(lambda *arguments: nonsense)
    assert decision.kind == "defer" and repr(nonsense) in decision.reason


@pytest.mark.parametrize(
    "error", [ValueError("no idea"), SystemExit("no idea"), KeyboardInterrupt("no idea")]
)
def test_a_reviewer_that_raises_defers_with_what_it_raised(error: BaseException) -> None:
    assert ask(raising(error)) == Decision("defer", f"the reviewer raised {type(error).__name__}: no idea")


def test_an_error_or_answer_that_cannot_be_shown_defers() -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    assert ask(raising(Unshowable())).kind == "defer"
    assert ask(Unshowable()).kind == "defer"


def test_an_endless_answer_is_cut_short() -> None:
    assert len(ask("x" * 100_000).reason) < 1_000
    assert len(ask(Decision("defer", "x" * 100_000)).reason) < 1_000


def test_a_reason_that_is_no_text_becomes_text() -> None:
    assert ask(Decision("defer", 5)).reason == "5"  # type: ignore[arg-type]  # on purpose


def test_a_hanging_reviewer_defers_and_says_how_long_was_waited(held: threading.Event) -> None:
    decision = ask(lambda *arguments: held.wait(), timeout_s=0.02)
    assert decision == Decision("defer", "the reviewer gave no answer in 0.02 s")


def test_a_late_answer_reaches_nobody(held: threading.Event) -> None:
    answers = iter([lambda: held.wait() and True, lambda: False])
    reviewer = TimedReviewer(lambda *arguments: next(answers)(), 0.05)
    assert "no answer" in reviewer.review(QUERY, Verdict(0.2), Precedents()).reason
    held.set()
    assert reviewer.review(QUERY, Verdict(0.2), Precedents()).reason == "the reviewer's decision"


def test_the_reviewer_sees_query_verdict_and_precedents() -> None:
    seen: list[Any] = []
    ask(lambda *arguments: seen.extend(arguments) or True)
    assert seen == [QUERY, Verdict(0.2), Precedents()]


def test_an_object_with_a_review_method_is_asked() -> None:
    class Careful:
        def review(self, query: Query, verdict: Verdict, precedents: Precedents) -> Decision:
            return Decision("terminate", query.action)

    assert TimedReviewer(Careful()).review(QUERY, Verdict(0.2), Precedents()).reason == "act"
    with pytest.raises(ConfigurationError, match="is a class"):
        TimedReviewer(Careful)  # type: ignore[arg-type]  # on purpose


def test_an_unlimited_wait_is_possible() -> None:
    assert ask(True, timeout_s=float("inf")).kind == "execute"


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), "5", True, None])
def test_a_time_limit_that_is_none_is_refused(timeout_s: Any) -> None:
    with pytest.raises(ConfigurationError, match="review_timeout_s"):
        ask(True, timeout_s=timeout_s)
