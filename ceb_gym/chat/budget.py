"""Budgets of requests, tokens and money: when one is spent, no further request is made."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from ceb_gym.chat.forking import renew_after_fork
from ceb_gym.errors import BudgetError, ConfigurationError


class Budget:
    """Counts what was used, for any number of threads.

    The number of requests is never passed. What a request takes in tokens is known only afterwards, so that
    those under way when the budget of tokens or money is spent, at most `concurrency`, still end.

    Args:
        max_requests: Requests really made, retries included; None for no limit.
        max_total_tokens: Prompt and completion tokens.
        max_cost: In the currency of the prices.
        prompt_price: Of a million prompt tokens.
        completion_price: Of a million completion tokens.
    """

    def __init__(
        self,
        max_requests: float | None = None,
        max_total_tokens: float | None = None,
        max_cost: float | None = None,
        prompt_price: float | None = None,
        completion_price: float | None = None,
    ) -> None:
        given = {
            "max_requests": max_requests,
            "max_total_tokens": max_total_tokens,
            "max_cost": max_cost,
            "prompt_price": prompt_price,
            "completion_price": completion_price,
        }
        for name, value in given.items():
            _check_amount(name, value)
        if max_cost is not None and (prompt_price is None or completion_price is None):
            raise ConfigurationError("max_cost needs prompt_price and completion_price, per million tokens.")
        self._limits = {"requests": max_requests, "tokens": max_total_tokens, "cost": max_cost}
        self._prices = (prompt_price, completion_price)
        self._used = {"requests": 0.0, "tokens": 0.0, "cost": 0.0}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """A lock of its own for a forked child, which counts on from here by itself."""
        self._lock = threading.Lock()

    @property
    def used(self) -> dict[str, float]:
        """What was used so far: requests, tokens, cost."""
        with self._lock:
            return dict(self._used)

    def take_request(self) -> None:
        """Counts one request. Raises BudgetError, and counts nothing, where a budget is spent."""
        with self._lock:
            for name, limit in self._limits.items():
                if limit is not None and self._used[name] >= limit:
                    raise BudgetError(
                        f"The budget of {limit:g} {name} is spent ({self._used[name]:g} used), so no request "
                        "was made: raise the budget, or start again with a new one."
                    )
            self._used["requests"] += 1

    def add_tokens(self, prompt: float, completion: float) -> float | None:
        """Counts tokens and returns their cost; None without prices."""
        prompt_price, completion_price = self._prices
        cost = None
        if prompt_price is not None and completion_price is not None:
            cost = (prompt * prompt_price + completion * completion_price) / 1e6
        with self._lock:
            self._used["tokens"] += prompt + completion
            self._used["cost"] += cost or 0.0
        return cost


class Usage:
    """What one request took, retries and singly asked choices included; for any number of threads."""

    def __init__(self) -> None:
        names = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")
        self._numbers = dict.fromkeys(names, 0.0)
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def add(self, numbers: Mapping[str, float]) -> None:
        """Adds to each number."""
        with self._lock:
            for name, number in numbers.items():
                self._numbers[name] = self._numbers.get(name, 0.0) + number

    def numbers(self) -> dict[str, float]:
        """All of it, and the seconds since the start."""
        with self._lock:
            return {**self._numbers, "seconds": time.monotonic() - self._started}


def _check_amount(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigurationError(f"{name} is {value!r}: give a number from 0, or none.")
