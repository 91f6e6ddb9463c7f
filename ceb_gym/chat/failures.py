"""What went wrong with a request: to be changed, to be tried again, or for good."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from ceb_gym.errors import ChatError

_FIRST_WAIT_S = 0.5
_SHOWN_CHARS = 300
_NEVER_AGAIN = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "content_filter",
        "content_policy_violation",
        "context_length_exceeded",
    }
)


class Refusal(Exception):
    """The endpoint does not take the request as it is.

    Attributes:
        param: The parameter that it names; "" where it names none.
        message: What it says.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


class Retry(Exception):
    """The request may succeed later.

    Attributes:
        message: What happened.
        wait_s: How long the endpoint asks to wait; None where it says nothing.
    """

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.wait_s = wait_s


def refusal_of(
    error: Exception, model: str, endpoint: str, timeout_s: float, secret: str
) -> Refusal | Retry | ChatError:
    """Sorts what the openai package or its HTTP client raised; cuts the key out of what is said."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return Retry(f"{model} gave no answer in {timeout_s:.3g} s.")
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        return Retry(f"{endpoint} cannot be reached: {_said(str(cause), secret)}")
    if not isinstance(error, openai.APIStatusError):
        kinds = {kind.__name__ for kind in type(error).__mro__}  # of the HTTP package, which one it may be
        if "TimeoutException" in kinds:
            return Retry(f"{model} gave no complete answer in {timeout_s:.3g} s.")
        if "TransportError" in kinds:
            return Retry(f"{endpoint} broke off its answer: {_said(str(error), secret)}")
        return ChatError(
            f"{endpoint} could not be asked: {type(error).__name__}: {_said(str(error), secret)}"
        )
    body = error.body if isinstance(error.body, Mapping) else {}
    codes = {str(body.get("code") or ""), str(body.get("type") or "")}
    said = _said(str(body.get("message") or error.message), secret)
    message = f"{endpoint} answered {error.status_code} for {model}: {said}"
    if lasting := codes & _NEVER_AGAIN:
        return ChatError(f"{message} ({', '.join(sorted(lasting))})")
    if error.status_code == 400 or error.status_code == 422:
        return Refusal(str(body.get("param") or ""), message)
    passing = error.status_code in (408, 409, 429) or error.status_code >= 500
    if passing and error.response.headers.get("x-should-retry") != "false":
        return Retry(message, _asked_wait(error.response.headers))
    return ChatError(message)


def wait_before_retry(again: Retry, attempt: int, retries: int, deadline: float) -> None:
    """Sleeps before the next attempt.

    Raises:
        ChatError: If there is none left, or the wait would pass the deadline.
    """
    if attempt >= retries:
        raise ChatError(f"{again.message} (after {attempt + 1} attempts)") from None
    wait_s = again.wait_s
    if wait_s is None:  # spread out, so that what failed together does not come back together
        wait_s = _FIRST_WAIT_S * 2**attempt * random.uniform(0.75, 1.25)
    left = deadline - time.monotonic()
    if wait_s >= left:
        raise ChatError(
            f"{again.message} The next attempt would have to wait {wait_s:.3g} s, beyond the deadline."
        ) from None
    time.sleep(wait_s)


def _asked_wait(headers: Any) -> float | None:
    """Seconds of `retry-after-ms` or Retry-After, which may be a number or a date."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(text).timestamp() - time.time()
            except (TypeError, ValueError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None


def _said(text: str, secret: str) -> str:
    if secret and secret != "none":
        text = text.replace(secret, "[key]")
    plain = " ".join(text.split())
    return plain if len(plain) <= _SHOWN_CHARS else f"{plain[:_SHOWN_CHARS]}..."
