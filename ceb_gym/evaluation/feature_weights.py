"""What each feature is worth to the `precedent` critic: how much worse it judges with the feature mixed up.

Source: permutation importance, Breiman (2001), and for groups of features Gregorutti et al. (2015).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ceb_gym.critics.precedent import PrecedentCritic
from ceb_gym.evaluation.rollout import RolloutResult
from ceb_gym.features import feature_groups
from ceb_gym.protocols import Bank
from ceb_gym.types import Record

MIN_RECORDS: Final = 40
REPEATS: Final = 10
NEWEST_RECORDS: Final = 500  # bounds the time: each repeat judges them once per feature
_PRECEDENTS: Final = "precedents"

IntArray = NDArray[np.int_]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Weight:
    """How much the Brier score rose over the repeats: mean, and standard deviation (n - 1)."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class FeatureWeights:
    """Weights by feature and by group, each by part ("all", and "later_steps" where there are any).

    Attributes:
        features: By name, in the order of `feature_groups`.
        groups: By name: all features of a group mixed up together.
        n_learned: Records that the critic learned from.
        n_judged: Records that it judged.
        n_later: How many of these were no first steps.
        uses_precedents: Whether the critic looked at precedents; otherwise their weight is 0.
    """

    features: Mapping[str, Mapping[str, Weight]]
    groups: Mapping[str, Mapping[str, Weight]]
    n_learned: int
    n_judged: int
    n_later: int
    uses_precedents: bool

    def strongest(self, count: int) -> list[str]:
        """The features that weigh most over all steps, strongest first; equal ones by name."""
        return sorted(self.features, key=lambda name: (-self.features[name]["all"].mean, name))[:count]

    def to_json(self) -> dict[str, Any]:
        """Returns all weights as JSON can hold them."""
        return {
            "labels": "pseudo-labels",
            "n_learned": self.n_learned,
            "n_judged": self.n_judged,
            "n_later": self.n_later,
            "repeats": REPEATS,
            "uses_precedents": self.uses_precedents,
            "features": _weights_json(self.features),
            "groups": _weights_json(self.groups),
        }


def weights_of_run(
    critic: PrecedentCritic, bank: Bank, scope: str, result: RolloutResult, *, seed: int
) -> FeatureWeights | str:
    """The weights by what the bank holds of a run's own episodes; see `feature_weights`.

    Args:
        critic: Not fitted yet.
        bank: Has labelled the run's episodes.
        scope: The run's own.
        result: Of the run.
        seed: For the mixing.
    """
    runs = {episode.episode_id: episode.source or episode.episode_id for episode in result.episodes}
    since = result.steps[0].bank_revision if result.steps else 0
    records = [record for record in bank.records(scope, since=since) if record.episode_id in runs]
    return feature_weights(critic, records, [runs[record.episode_id] for record in records], seed=seed)


def feature_weights(
    critic: PrecedentCritic, records: Sequence[Record], runs: Sequence[str], *, seed: int
) -> FeatureWeights | str:
    """Learns from the older three quarters of a run and mixes features up in the newest quarter.

    Values of first steps are given to other first steps and those of later ones to later ones, since steps of
    the other kind never have them.

    Args:
        critic: Not fitted yet.
        records: Of one run, in commit order, with features of the current version.
        runs: Shape (n_records,), what each record's label became known with: its episode, or the run that
            this is a part of. Never torn in two.
        seed: For the mixing: each repeat has one order, which all features share.

    Returns:
        The weights, or a sentence that says why there are none.
    """
    if len(records) < MIN_RECORDS:
        return f"They need at least {MIN_RECORDS} records of this run in the bank; there are {len(records)}."
    is_new = _newest_quarter(runs)
    learned = [record for record, new in zip(records, is_new, strict=True) if not new]
    judged = [record for record, new in zip(records, is_new, strict=True) if new][-NEWEST_RECORDS:]
    for kind, some in (("older three quarters", learned), ("newest quarter", judged)):
        if len({record.label for record in some}) < 2:
            return f"They need productive and unproductive records, and the {kind} of the run has one class."
    fitted = critic.fit(learned)
    mixer = _Mixer(fitted, judged, seed)
    used = {
        group: names
        for group, names in feature_groups().items()
        if group != _PRECEDENTS or fitted.uses_precedents
    }
    none = {part: Weight(0.0, 0.0) for part in mixer.parts}
    return FeatureWeights(
        features={
            name: mixer.weight([name]) if group in used else none
            for group, names in feature_groups().items()
            for name in names
        },
        groups={
            group: mixer.weight(names) if group in used else none for group, names in feature_groups().items()
        },
        n_learned=len(learned),
        n_judged=len(judged),
        n_later=int((~mixer.first).sum()),
        uses_precedents=fitted.uses_precedents,
    )


class _Mixer:
    """Judges records with some of their features taken from others.

    Args:
        critic: Fitted.
        records: At least one.
        seed: For the orders.
    """

    def __init__(self, critic: PrecedentCritic, records: Sequence[Record], seed: int) -> None:
        self._critic = critic
        self._rows = [record.features for record in records]
        self._labels = np.array([record.label for record in records], dtype=np.float64)
        self.first = np.array([record.step_index == 0 for record in records])
        self.parts = {"all": np.ones_like(self.first)}
        if not self.first.all():
            self.parts["later_steps"] = ~self.first
        self._orders = [
            _order(self.first, np.random.default_rng([seed, repeat])) for repeat in range(REPEATS)
        ]
        self._before = self._errors(self._rows)

    def weight(self, names: Sequence[str]) -> dict[str, Weight]:
        """By part, how much the Brier score rises when these features are mixed up together."""
        present = [name for name in names if len({row.get(name, 0.0) for row in self._rows}) > 1]
        if not present:  # mixing up what is the same everywhere changes nothing
            return {part: Weight(0.0, 0.0) for part in self.parts}
        rises: dict[str, list[float]] = {part: [] for part in self.parts}
        for order in self._orders:
            errors = self._errors(
                [
                    {**row, **{name: self._rows[place].get(name, 0.0) for name in present}}
                    for row, place in zip(self._rows, order.tolist(), strict=True)
                ]
            )
            for part in self.parts:
                rises[part].append(errors[part] - self._before[part])
        return {
            part: Weight(float(np.mean(rise)), float(np.std(rise, ddof=1))) for part, rise in rises.items()
        }

    def _errors(self, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
        squared = (self._critic.probabilities(rows, self.first.tolist()) - self._labels) ** 2
        return {part: float(squared[places].mean()) for part, places in self.parts.items()}


def _order(first: BoolArray, rng: np.random.Generator) -> IntArray:
    """From where each record takes its values: first steps from first steps, later ones from later ones."""
    order = np.arange(first.size)
    for kind in (first, ~first):
        order[kind] = rng.permutation(order[kind])
    return order


def _newest_quarter(runs: Sequence[str]) -> list[bool]:
    """Whether each record is of the newest quarter of the runs, by when their last record came."""
    by_age = list(dict.fromkeys(reversed(runs)))[::-1]
    newest = set(by_age[len(by_age) * 3 // 4 :])
    return [run in newest for run in runs]


def _weights_json(weights: Mapping[str, Mapping[str, Weight]]) -> dict[str, Any]:
    return {
        name: {part: {"mean": weight.mean, "sd": weight.deviation} for part, weight in parts.items()}
        for name, parts in weights.items()
    }
