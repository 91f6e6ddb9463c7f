"""Critics that need no language model: a constant, the base rate, a table of counts, the neighbors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ceb_gym.errors import ConfigurationError
from ceb_gym.features import step_features
from ceb_gym.protocols import Critic
from ceb_gym.text import number_text
from ceb_gym.types import Precedent, Precedents, Query, Record, Verdict

MAX_STEP_INDEX = 4


def _require_weight(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} is {value!r}: give a number above 0.")
    return float(value)


class ConstantCritic:
    """Gives every action the same confidence: for measuring overhead and for controls."""

    k = 0

    def __init__(self, confidence: float = 0.5) -> None:
        is_number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
        if not is_number or not 0 <= confidence <= 1:
            raise ConfigurationError(f"The constant confidence is {confidence!r}: give a number in [0, 1].")
        self.name = f"constant:{number_text(confidence)}"
        self._verdict = Verdict(float(confidence), source=self.name)

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns the same verdict for each query."""
        return [self._verdict] * len(queries)


class BaseRateCritic:
    """The share of productive records so far, whatever the action: a hard baseline for calibration.

    Args:
        prior_weight: How many imagined records, half of them productive, come before the first real one.
    """

    name = "base_rate"
    k = 0
    incremental = True

    def __init__(self, prior_weight: float = 2.0) -> None:
        self._prior_weight = _require_weight("prior_weight", prior_weight)
        self._productive = 0
        self._total = 0

    def fit(self, records: Sequence[Record], previous: Critic | None = None) -> BaseRateCritic:
        """Counts the records on top of those of `previous`."""
        fitted = BaseRateCritic(self._prior_weight)
        if isinstance(previous, BaseRateCritic):
            fitted._productive, fitted._total = previous._productive, previous._total
        fitted._productive += sum(record.label for record in records)
        fitted._total += len(records)
        return fitted

    @property
    def rate(self) -> float:
        """The smoothed positive rate."""
        return (self._productive + self._prior_weight / 2) / (self._total + self._prior_weight)

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns the positive rate for each query."""
        verdict = Verdict(self.rate, f"{self._productive} of {self._total} records productive", self.name)
        return [verdict] * len(queries)


Cell = tuple[int, bool]


class CountsCritic:
    """A table of positive rates over (step index up to 4, exact repeat of one of the last 3 actions).

    It knows nothing about the task and needs no precedents, so any use of a bank must beat it. A cell
    without records gives the base rate, and leaves it as records come in.

    Args:
        prior_weight: How many imagined records at the base rate each cell starts with.
    """

    name = "counts"
    k = 0
    incremental = True

    def __init__(self, prior_weight: float = 1.0) -> None:
        self._prior_weight = _require_weight("prior_weight", prior_weight)
        self._productive: Counter[Cell] = Counter()
        self._total: Counter[Cell] = Counter()
        self._base = BaseRateCritic()

    def fit(self, records: Sequence[Record], previous: Critic | None = None) -> CountsCritic:
        """Counts the records on top of those of `previous`."""
        fitted = CountsCritic(self._prior_weight)
        if isinstance(previous, CountsCritic):
            fitted._productive.update(previous._productive)
            fitted._total.update(previous._total)
            fitted._base = previous._base
        for record in records:
            cell = self._cell(record.features, record.step_index)
            fitted._total[cell] += 1
            fitted._productive[cell] += record.label
        fitted._base = fitted._base.fit(records, fitted._base)
        return fitted

    @staticmethod
    def _cell(features: Mapping[str, float], step_index: int) -> Cell:
        return min(step_index, MAX_STEP_INDEX), features.get("exact_repeat", 0.0) > 0

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns each query's smoothed cell rate."""
        return [self._verdict(query) for query in queries]

    def _verdict(self, query: Query) -> Verdict:
        cell = self._cell(step_features(query), query.step_index)
        productive, total = self._productive[cell], self._total[cell]
        confidence = (productive + self._prior_weight * self._base.rate) / (total + self._prior_weight)
        repeat = "a repeated" if cell[1] else "a new"
        rationale = f"{productive} of {total} records productive for {repeat} action at step {cell[0]}"
        return Verdict(confidence, rationale, self.name)


class NeighborsCritic:
    """Similarity-weighted average of the precedents' labels, drawn to the base rate where they are far.

    z = r (w + s+) / (w + r s+ + (1 - r) s-), with r the base rate, w the prior's weight, and s+ and s- the
    mean over the productive and the unproductive precedents of their cosine similarity to `power`. Both
    classes are looked up with equal k, however rare one is, so each class weighs in by its base rate:
    precedents that are equally near on both sides leave z at r.

    Where more than k records of each class equal the query, both sides are equally near and z stays at r: in
    small environments whose states recur often, a larger k tells more.

    Args:
        k: Precedents per class.
        prior_weight: Weight w of the base rate.
        power: Exponent on the similarity; higher listens to the closest only.
    """

    incremental = True

    def __init__(self, k: int = 20, prior_weight: float = 0.1, power: float = 2.0) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigurationError(f"k is {k!r}: give a whole number of precedents per class, at least 1.")
        self.k = k
        self.name = "neighbors"
        self._prior_weight = _require_weight("prior_weight", prior_weight)
        self._power = _require_weight("power", power)
        self._base = BaseRateCritic()

    def fit(self, records: Sequence[Record], previous: Critic | None = None) -> NeighborsCritic:
        """Learns the base rate."""
        fitted = NeighborsCritic(self.k, self._prior_weight, self._power)
        earlier = previous._base if isinstance(previous, NeighborsCritic) else None
        fitted._base = self._base.fit(records, earlier)
        return fitted

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns the weighted average for each query's precedents."""
        return [self._verdict(found) for found in precedents]

    def _verdict(self, found: Precedents) -> Verdict:
        rate, weight = self._base.rate, self._prior_weight
        productive = self._nearness(found.productive)
        unproductive = self._nearness(found.unproductive)
        confidence = rate * (weight + productive) / (weight + rate * productive + (1 - rate) * unproductive)
        rationale = (
            f"productive precedents are {productive:.2f} near, unproductive ones {unproductive:.2f}, "
            f"base rate {rate:.2f}"
        )
        return Verdict(min(max(confidence, 0.0), 1.0), rationale, self.name)

    def _nearness(self, precedents: Sequence[Precedent]) -> float:
        if not precedents:
            return 0.0
        return float(sum(precedent.similarity**self._power for precedent in precedents)) / len(precedents)
