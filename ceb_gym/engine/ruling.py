"""What becomes of a judged action: policy, exploration, reviewer, and the limits of deferring."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ceb_gym.engine.lane import Lane
from ceb_gym.errors import ConfigurationError
from ceb_gym.policies.simple import Governor
from ceb_gym.reviewers.timed import TimedReviewer
from ceb_gym.types import Assessment, Decision

ReviewOn = Literal["repeat", "every"]


@dataclass(frozen=True, slots=True)
class Ruling:
    """The last word on one call of `step`.

    Attributes:
        assessment: Of the action that is executed or deferred, with the final decision.
        action: What to execute.
        proposed: What the agent asked for, as text.
        executes: Whether the environment is to be called.
        truncates: Whether the episode ends here, without the environment.
        propensity: Probability with which this was decided.
    """

    assessment: Assessment
    action: Any
    proposed: str
    executes: bool
    truncates: bool
    propensity: float


def check_decision(decision: Any, *, blocking: bool) -> None:
    """Raises ConfigurationError for what no policy may return."""
    if not isinstance(decision, Decision) or not isinstance(decision.reason, str):
        raise ConfigurationError(f"The policy returned {decision!r:.100}: it must be a Decision.")
    if decision.kind not in ("execute", "defer", "modify", "terminate"):
        raise ConfigurationError(f"The policy decided {decision.kind!r}, which is no kind of decision.")
    if decision.kind == "modify" and decision.action is None:
        raise ConfigurationError("The policy decided to modify the action, but gave no replacement.")
    if decision.kind != "execute" and not blocking:
        raise ConfigurationError(f"The policy decided {decision.kind!r} although its `blocking` is False.")


class Arbiter:
    """Applies a policy to one lane.

    Args:
        governor: The policy and its switches.
        reviewer: Has the last word on deferred actions, if there is one.
        review_on: "repeat" asks the reviewer when the same action is deferred a second time in the same
            state, "every" at each deferral.
        max_deferrals: An episode with this many is truncated.
        seed: For exploration.
    """

    def __init__(
        self,
        governor: Governor,
        reviewer: TimedReviewer | None,
        *,
        review_on: ReviewOn,
        max_deferrals: int,
        seed: int | None,
    ) -> None:
        self._governor = governor
        self._reviewer = reviewer
        self._review_on = review_on
        self._max_deferrals = max_deferrals
        self._rng = np.random.default_rng(seed)
        self._deferred: Counter[tuple[str, str]] = Counter()
        self.deferrals = 0

    @property
    def blocking(self) -> bool:
        """Whether an action can be kept from the environment."""
        return self._governor.blocking

    def begin_episode(self, seed: int | None) -> None:
        """Forgets the episode's deferrals; a seed restarts exploration."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._deferred.clear()
        self.deferrals = 0
        self._governor.policy.begin_episode()

    def preview(self, assessment: Assessment) -> Assessment:
        """Adds the policy's decision, and changes nothing."""
        decision = self._governor.decide(assessment.query, assessment.verdict)
        check_decision(decision, blocking=self._governor.policy.blocking)
        return assessment if decision.kind == "execute" else replace(assessment, decision=decision)

    def rule(self, lane: Lane, action: Any, assessment: Assessment) -> Ruling:
        """Decides about an assessment that `preview` has seen; unexecuted proposals go to the lane."""
        governor, decision = self._governor, assessment.decision
        proposed = assessment.query.action
        if decision.kind == "execute":
            governor.policy.observe(assessment.verdict, decision)
            return Ruling(assessment, action, proposed, True, False, 1.0)
        if not governor.enforce:
            governor.policy.observe(assessment.verdict, decision)
            noted = replace(decision, reason=f"{decision.reason} (recorded, not enforced)")
            return Ruling(replace(assessment, decision=noted), action, proposed, True, False, 1.0)
        if governor.explore > 0 and self._rng.random() < governor.explore:
            explored = Decision("execute", f"explored although {decision.reason}")
            governor.policy.observe(assessment.verdict, explored)
            return Ruling(
                replace(assessment, decision=explored), action, proposed, True, False, governor.explore
            )
        governor.policy.observe(assessment.verdict, decision)
        final = self._reviewed(assessment)
        return self._apply(lane, action, replace(assessment, decision=final), 1.0 - governor.explore)

    def _reviewed(self, assessment: Assessment) -> Decision:
        """A deferral after the reviewer has been asked, where it is to be asked."""
        decision, query = assessment.decision, assessment.query
        if decision.kind != "defer":
            return decision
        repeated = self._deferred[query.state, query.action] > 0
        self._deferred[query.state, query.action] += 1
        if self._reviewer is not None and (repeated or self._review_on == "every"):
            answer = self._reviewer.review(query, assessment.verdict, assessment.precedents)
            if answer.kind == "defer":
                return Decision("defer", f"{decision.reason}; {answer.reason}")
            return answer
        if repeated and self._reviewer is None:
            return Decision("terminate", f"{decision.reason}; deferred before in this state, no reviewer")
        return decision

    def _apply(self, lane: Lane, action: Any, assessment: Assessment, propensity: float) -> Ruling:
        decision, proposed = assessment.decision, assessment.query.action
        if decision.kind == "execute":
            return Ruling(assessment, action, proposed, True, False, propensity)
        if decision.kind == "modify":
            lane.append_unexecuted(assessment, propensity=propensity)
            judged = replace(lane.judge([decision.action])[0], decision=decision)
            return Ruling(judged, decision.action, proposed, True, False, propensity)
        truncates = decision.kind == "terminate"
        if decision.kind == "defer":
            self.deferrals += 1
            if self.deferrals >= self._max_deferrals:
                truncates = True
                decision = replace(decision, reason=f"{decision.reason}; {self.deferrals} deferrals reached")
        assessment = replace(assessment, decision=decision)
        lane.append_unexecuted(assessment, propensity=propensity)
        return Ruling(assessment, action, proposed, False, truncates, propensity)
