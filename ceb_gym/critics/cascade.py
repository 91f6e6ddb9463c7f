"""Several critics in one: another one answers while the bank is cold, for risky steps, or on failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ceb_gym.critics.checks import check_count, checked_verdict
from ceb_gym.critics.rules import RulesCritic
from ceb_gym.errors import ConfigurationError, CriticError
from ceb_gym.protocols import Critic, LearningCritic
from ceb_gym.text import shorten
from ceb_gym.types import Precedents, Query, Record, Verdict

_SHOWN_CHARS = 200
Answer = Verdict | str  # a verdict, or why there is none


@dataclass(frozen=True, slots=True)
class Alternative:
    """A critic to the right of ` | `, and when it comes before those to its left.

    Attributes:
        critic: Answers.
        until: It comes first while the scope has fewer finished episodes than this. Counted by the scope's
            revision: one for each labelled episode, and one for each segment of a very long one.
        route: "risk": it comes first for steps that the rules find risky.
    """

    critic: Critic
    until: int = 0
    route: Literal["risk"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.until, bool) or not isinstance(self.until, int) or self.until < 0:
            raise ConfigurationError(
                f"until is {self.until!r}: give a whole number of finished episodes, from 0."
            )
        if self.route not in (None, "risk"):
            raise ConfigurationError(f'route is {self.route!r}: the only route is "risk".')


@dataclass(frozen=True, slots=True)
class _Unfitted:
    """Stands for a critic that could not learn, until it can.

    Attributes:
        last: The critic as it had learned before, if it had.
        waiting: Records that came since.
        reason: What it said.
    """

    last: Critic | None
    waiting: tuple[Record, ...]
    reason: str


class CascadeCritic:
    """Asks critics in an order that depends on the query, until one gives a confidence.

    The order is the one they are given in, with two exceptions: an alternative comes before all to its left
    while the scope has too few finished episodes, or where the step is risky. A critic that raises, returns
    what is no verdict, or leaves a query unscored, passes it on to the next. In a batch each critic is asked
    once, for its own queries; again only where a later one passes on to it what it had not seen.

    Where a `RulesCritic` is among the critics, its rules say what is risky, else the built-in ones.

    Args:
        first: Answers unless an alternative comes first. Must not learn: `cascade` builds what does.
        alternatives: The others, in order.
    """

    def __init__(self, first: Critic, alternatives: Sequence[Alternative]) -> None:
        self._alternatives = tuple(alternatives)
        self._critics = (first, *(each.critic for each in self._alternatives))
        for critic in self._critics:
            if isinstance(critic, type) or not isinstance(critic, Critic):
                raise ConfigurationError(f"A cascade holds {critic!r}, which is no critic.")
        if not self._alternatives:
            raise ConfigurationError(f"The cascade of {first.name} has no alternative: give at least one.")
        if any(isinstance(critic, LearningCritic) for critic in self._critics) and not hasattr(self, "fit"):
            raise ConfigurationError("A critic in this cascade learns from the bank: build it by `cascade`.")
        self._parts: tuple[Critic | _Unfitted, ...] = self._critics
        self._rules = next((part for part in self._critics if isinstance(part, RulesCritic)), RulesCritic())
        self.k = max(critic.k for critic in self._critics)
        self.name = " | ".join(critic.name for critic in self._critics)

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns for each query the verdict of the first critic that scores it, else an unscored one.

        Raises:
            CriticError: If none scores a query, and at least one of them failed to answer.
        """
        orders = [self._order(query) for query in queries]
        answers: list[list[Answer]] = [[] for _ in queries]
        waiting = list(range(len(queries)))
        while waiting:
            turns = {place: orders[place][len(answers[place])] for place in waiting}
            part = min(turns.values())
            places = [place for place in waiting if turns[place] == part]
            asked = self._ask(
                part, [queries[place] for place in places], [precedents[place] for place in places]
            )
            for place, answer in zip(places, asked, strict=True):
                answers[place].append(answer)
            waiting = [
                place
                for place in waiting
                if len(answers[place]) < len(self._critics) and not _is_scored(answers[place])
            ]
        return [self._conclusion(order, given) for order, given in zip(orders, answers, strict=True)]

    def _order(self, query: Query) -> list[int]:
        order = [0]
        risky: bool | None = None
        for place, alternative in enumerate(self._alternatives, start=1):
            comes_first = query.revision < alternative.until
            if not comes_first and alternative.route == "risk":
                risky = self._rules.find(query) is not None if risky is None else risky
                comes_first = risky
            order.insert(0 if comes_first else len(order), place)
        return order

    def _ask(self, place: int, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Answer]:
        critic, part = self._critics[place], self._parts[place]
        if isinstance(part, _Unfitted):
            return [part.reason] * len(queries)
        own = tuple(
            replace(
                found, productive=found.productive[: critic.k], unproductive=found.unproductive[: critic.k]
            )
            for found in precedents
        )
        try:
            verdicts = part.judge(tuple(queries), own)
            check_count(part, verdicts, len(queries))
        except Exception as error:  # a critic is foreign code: the next one answers in its place
            return [_reason(critic, error)] * len(queries)
        return [_checked_answer(part, verdict) for verdict in verdicts]

    def _conclusion(self, order: Sequence[int], answers: Sequence[Answer]) -> Verdict:
        last = answers[-1]
        failures = [answer for answer in answers if isinstance(answer, str)]
        verdicts = [answer for answer in answers if isinstance(answer, Verdict)]
        usage: Counter[str] = Counter()
        features: dict[str, float] = {}
        for verdict in verdicts:
            usage.update(verdict.usage)
            features.update(verdict.features)
        if isinstance(last, Verdict) and last.confidence is not None:
            notes = "".join(f" [in place of another: {shorten(text, _SHOWN_CHARS)}]" for text in failures)
            return replace(last, rationale=last.rationale + notes, usage=dict(usage), features=features)
        told = "; ".join(
            shorten(answer, _SHOWN_CHARS)
            if isinstance(answer, str)
            else f"{self._critics[place].name} left it unscored ({shorten(answer.rationale, _SHOWN_CHARS)})"
            for place, answer in zip(order, answers, strict=True)
        )
        if failures:
            raise CriticError(f"No critic of the cascade {self.name} gave a confidence: {told}")
        return Verdict(None, told, self.name, dict(usage), features)


class LearningCascade(CascadeCritic):
    """A cascade of which at least one critic learns. Build it by `cascade`."""

    @property
    def incremental(self) -> bool:
        """Whether all critics that learn can continue from earlier ones."""
        return all(part.incremental for part in self._critics if isinstance(part, LearningCritic))

    def fit(self, records: Sequence[Record], previous: Critic | None = None) -> LearningCascade:
        """Returns a cascade of which each learning critic has learned; one that cannot is passed over."""
        fitted = LearningCascade(self._critics[0], self._alternatives)
        earlier = previous._parts if isinstance(previous, LearningCascade) else (None,) * len(self._critics)
        fitted._parts = tuple(
            _fit(critic, tuple(records), before) if isinstance(critic, LearningCritic) else critic
            for critic, before in zip(self._critics, earlier, strict=True)
        )
        return fitted


def cascade(first: Critic, *alternatives: Alternative | Critic) -> CascadeCritic:
    """Joins critics as ` | ` does in a spec; a plain critic answers only where those before it do not.

    Raises:
        ConfigurationError: If there is no alternative, or a part is no critic.
    """
    others = [each if isinstance(each, Alternative) else Alternative(each) for each in alternatives]
    learns = any(isinstance(critic, LearningCritic) for critic in (first, *(each.critic for each in others)))
    return (LearningCascade if learns else CascadeCritic)(first, others)


def _fit(
    critic: LearningCritic, records: tuple[Record, ...], before: Critic | _Unfitted | None
) -> Critic | _Unfitted:
    if isinstance(before, _Unfitted):
        records, before = (*before.waiting, *records), before.last
    try:
        fitted: Any = critic.fit(records) if before is None else critic.fit(records, before)
        if not isinstance(fitted, Critic):
            raise CriticError(f"Critic {critic.name} returned {fitted!r} from `fit`, which is no critic.")
    except Exception as error:  # a critic is foreign code: the next one answers in its place
        return _Unfitted(before, records, f"{_reason(critic, error)} (when it learned)")
    return fitted


def _is_scored(answers: Sequence[Answer]) -> bool:
    last = answers[-1] if answers else ""
    return isinstance(last, Verdict) and last.confidence is not None


def _checked_answer(critic: Critic, verdict: Verdict) -> Answer:
    try:
        return checked_verdict(critic, verdict)
    except CriticError as error:
        return str(error)


def _reason(critic: Critic, error: Exception) -> str:
    text = str(error)
    if isinstance(error, CriticError) and critic.name in text:
        return text
    return f"Critic {critic.name} raised {type(error).__name__}: {text}"
