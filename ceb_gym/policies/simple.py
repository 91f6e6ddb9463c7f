"""Policies: never defer, defer below a threshold, the lowest share, or within a review budget; chains."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence

from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Policy
from ceb_gym.types import Decision, Query, Verdict

EXECUTE = Decision("execute")
_ROUNDING = 1e-9  # 0.29 * 100 is 28.999999999999996


def _require_share(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigurationError(f"{name} is {value!r}: give a number in [0, 1].")
    return float(value)


class NeverDefer:
    """Executes every action."""

    blocking = False

    def begin_episode(self) -> None:
        """Has nothing to forget."""

    def decide(self, query: Query, verdict: Verdict) -> Decision:
        """Returns "execute"."""
        return EXECUTE

    def observe(self, verdict: Verdict, decision: Decision) -> None:
        """Has nothing to learn."""


class DeferBelow:
    """Defers an action whose confidence is below a threshold. Unscored actions are executed.

    Args:
        threshold: In [0, 1]; a confidence equal to it is executed.
    """

    blocking = True

    def __init__(self, threshold: float) -> None:
        self._threshold = _require_share("The threshold of defer_below", threshold)

    def begin_episode(self) -> None:
        """Has nothing to forget."""

    def decide(self, query: Query, verdict: Verdict) -> Decision:
        """Returns "defer" below the threshold."""
        if verdict.confidence is None or verdict.confidence >= self._threshold:
            return EXECUTE
        return Decision("defer", f"confidence {verdict.confidence:.3f} is below {self._threshold:g}")

    def observe(self, verdict: Verdict, decision: Decision) -> None:
        """Has nothing to learn."""


class DeferLowest:
    """Defers the lowest share b of the confidences, by the running quantile of those seen so far.

    Args:
        share: b in [0, 1].
        warmup: Actions judged before the first may be deferred.
        window: The quantile looks back over this many confidences.
    """

    blocking = True

    def __init__(self, share: float, warmup: int = 20, window: int = 1_000) -> None:
        self._share = _require_share("The share of defer_lowest", share)
        numbers = (warmup, window)
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not whole or warmup < 1 or window < warmup:
            raise ConfigurationError(
                f"warmup is {warmup!r} and window {window!r}: give whole numbers with 1 <= warmup <= window."
            )
        self._warmup, self._window = warmup, window
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def begin_episode(self) -> None:
        """Keeps the quantile: it runs over all episodes."""

    def decide(self, query: Query, verdict: Verdict) -> Decision:
        """Returns "defer" where the confidence ranks in the lowest share b of itself and those seen.

        Equal confidences rank below the new one: of many equal ones none is deferred unless b reaches them
        all, and a share of 0 defers nothing.
        """
        confidence, count = verdict.confidence, len(self._sorted)
        if confidence is None or count < self._warmup:
            return EXECUTE
        rank = bisect_right(self._sorted, confidence) + 1
        if rank > self._share * (count + 1) + _ROUNDING:
            return EXECUTE
        return Decision("defer", f"confidence {confidence:.3f} is among the lowest {self._share:.0%}")

    def observe(self, verdict: Verdict, decision: Decision) -> None:
        """Moves the quantile by one confidence."""
        if verdict.confidence is None:
            return
        self._recent.append(verdict.confidence)
        insort(self._sorted, verdict.confidence)
        if len(self._recent) > self._window:
            self._sorted.pop(bisect_left(self._sorted, self._recent.popleft()))


class ReviewBudget:
    """Defers at most m actions an episode, those with a confidence below a threshold.

    Args:
        budget: m, a whole number from 0.
        below: In [0, 1].
    """

    blocking = True

    def __init__(self, budget: int, below: float = 0.5) -> None:
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
            raise ConfigurationError(f"The review budget is {budget!r}: give a whole number from 0.")
        self._budget = budget
        self._below = DeferBelow(below)
        self._spent = 0

    def begin_episode(self) -> None:
        """Refills the budget."""
        self._spent = 0

    def decide(self, query: Query, verdict: Verdict) -> Decision:
        """Returns "defer" below the threshold while there is budget."""
        if self._spent >= self._budget:
            return EXECUTE
        decision = self._below.decide(query, verdict)
        if decision.kind == "execute":
            return decision
        return Decision("defer", f"{decision.reason}; deferral {self._spent + 1} of {self._budget}")

    def observe(self, verdict: Verdict, decision: Decision) -> None:
        """Spends the budget on what was really deferred."""
        self._spent += decision.kind == "defer"


class PolicyChain:
    """Asks several policies in order; the first that does not say "execute" decides.

    Each policy learns of its own decisions only: a budget is not spent by what another policy deferred.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._policies = tuple(policies)
        self._decided_by: dict[str, Policy] = {}
        self.blocking = any(policy.blocking for policy in self._policies)

    def begin_episode(self) -> None:
        """Begins an episode for each policy."""
        self._decided_by.clear()
        for policy in self._policies:
            policy.begin_episode()

    def decide(self, query: Query, verdict: Verdict) -> Decision:
        """Returns the first decision that is not "execute"."""
        for policy in self._policies:
            decision = policy.decide(query, verdict)
            if decision.kind != "execute":
                self._decided_by[decision.reason] = policy
                return decision
        return EXECUTE

    def observe(self, verdict: Verdict, decision: Decision) -> None:
        """Tells the policy that decided, and the others that the action is executed for all they said."""
        decider = self._decided_by.get(decision.reason)
        for policy in self._policies:
            policy.observe(verdict, decision if policy is decider else EXECUTE)
        self._decided_by.clear()


class Governor:
    """A policy with the switches that every policy has.

    Args:
        policy: Decides.
        explore: Probability with which a deferral is executed anyway, so that a wrong low score can be
            corrected: deferred steps are never labelled.
        enforce: False records each decision and applies none.
        min_revision: Nothing is deferred while the scope's pinned revision is below this: a bank of one
            failed episode says little, and what is deferred cannot correct it.
    """

    def __init__(
        self, policy: Policy, explore: float = 0.0, enforce: bool = True, min_revision: int = 0
    ) -> None:
        self.policy = policy
        self.explore = _require_share("explore", explore)
        if not isinstance(enforce, bool):
            raise ConfigurationError(f"enforce is {enforce!r}: give true or false.")
        if isinstance(min_revision, bool) or not isinstance(min_revision, int) or min_revision < 0:
            raise ConfigurationError(f"min_revision is {min_revision!r}: give a whole number from 0.")
        self.enforce = enforce
        self.min_revision = min_revision

    @property
    def blocking(self) -> bool:
        """Whether an action can be kept from the environment."""
        return self.policy.blocking and self.enforce

    def decide(self, query: Query, verdict: Verdict) -> Decision:
        """Returns the policy's decision, or "execute" while the bank is young; changes nothing."""
        decision = self.policy.decide(query, verdict)
        return EXECUTE if query.revision < self.min_revision else decision
