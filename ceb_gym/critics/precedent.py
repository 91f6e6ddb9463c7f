"""The `precedent` critic: learned from the bank alone, without a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.ensemble import ExtraTreesClassifier

from ceb_gym.critics.banked_features import banked_features
from ceb_gym.critics.forest import CompactForest, FloatArray
from ceb_gym.critics.rescaling import Rescaling, fit_rescaling
from ceb_gym.critics.scorer import SCORE_FEATURES, check_scorer, scores_of
from ceb_gym.errors import ConfigurationError
from ceb_gym.features import feature_groups, query_features
from ceb_gym.protocols import Critic
from ceb_gym.types import Precedents, Query, Record, Verdict

MIN_RECORDS_OF_A_CLASS = 5
NEWEST_RECORDS = 4_000  # bounds the cost of one fit; older steps say less about how the agent acts now
TREES = 100
TRIAL_TREES = 25
MIN_LEAF = 5
_FOLDS = 3
_LIMIT = 0.003
_PRECEDENTS = "precedents"
_LARGEST = 1e30  # scikit-learn compares in single precision

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.intp]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What was learned about one kind of step: the first of an episode, or the later ones.

    Attributes:
        rate: Share of productive records, smoothed by half a record of each class.
        names: The features that its forest looks at; empty where there is no forest.
        rescaling: From the forest's logit to the answer's.
    """

    rate: float = 0.5
    names: Names = ()
    rescaling: Rescaling = field(default_factory=Rescaling)


class PrecedentCritic:
    """Judges by what the bank's records had in common: a forest over features of the query.

    First steps of episodes and later ones have rates of their own, since first steps often differ for one
    plain reason (any progress beats none). The forest's answer is rescaled around that rate, by how well
    forests predicted the steps of episodes that they had not seen: with an empty bank the answer is 0.5, with
    a young one the rate, later the forest.

    Args:
        k: Precedents per class that the features look at.
        precedents: Whether the features about precedents are used: "auto" does, for first and for later
            steps apart, where they predict unseen episodes of the own scope clearly better than the others
            alone.
        without: Groups of features to leave out, joined by commas: position, action, loops, outcomes. For
            ablations.
        scorer: A critic that does not learn, such as a language model's: its score is one more feature, and
            it sees as many precedents as it wants.

    Source: extremely randomised trees, Geurts et al. (2006); features in `ceb_gym.features`.
    """

    incremental = False

    def __init__(
        self,
        k: int = 5,
        precedents: bool | str = "auto",
        without: str = "",
        scorer: Critic | None = None,
    ) -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigurationError(f"k is {k!r}: give a whole number of precedents per class, at least 1.")
        if precedents not in (True, False, "auto"):
            raise ConfigurationError(f'precedents is {precedents!r}: give "auto", true or false.')
        if not isinstance(without, str):
            raise ConfigurationError(f"without is {without!r}: give names of groups, joined by commas.")
        self.name = "precedent"
        self._scorer = scorer
        self._own_k = self.k = k
        if scorer is not None:
            check_scorer(scorer)
            self.k = max(k, scorer.k)
            self.name = f"precedent({scorer.name})"
        self._precedents = precedents
        self._without = without
        self._plain_names = _names_without(without) + (SCORE_FEATURES if scorer is not None else ())
        if not self._plain_names and precedents is not True:
            raise ConfigurationError(
                f"without is {without!r}: no features are left. Leave out fewer, or give precedents=true."
            )
        self._forests: dict[Names, CompactForest] = {}
        self._first = self._later = _Kind()
        self.refitted_from_text = 0

    @property
    def uses_precedents(self) -> bool:
        """Whether a fitted forest looks at precedents."""
        return any(set(names) & set(feature_groups()[_PRECEDENTS]) for names in self._forests)

    def fit(self, records: Sequence[Record], previous: Critic | None = None) -> PrecedentCritic:
        """Learns from the records' stored features; where they are of another version, from their text."""
        fitted = PrecedentCritic(self._own_k, self._precedents, self._without, self._scorer)
        if not records:
            return fitted
        labels = np.array([record.label for record in records])
        first = np.array([record.step_index == 0 for record in records])
        fitted._first, fitted._later = _Kind(_rate(labels[first])), _Kind(_rate(labels[~first]))
        rarer = min(labels.sum(), labels.size - labels.sum())
        if rarer >= MIN_RECORDS_OF_A_CLASS:
            fitted._grow(records[-NEWEST_RECORDS:])
        return fitted

    def _grow(self, records: Sequence[Record]) -> None:
        """Fits the forests and how far to trust them."""
        rows, self.refitted_from_text = banked_features(records)
        labels = np.array([record.label for record in records]).astype(np.int8)
        first = np.array([record.step_index == 0 for record in records])
        episodes = _episode_numbers(records)
        folds = episodes % _FOLDS
        if len(set(folds.tolist())) < _FOLDS or labels.min() == labels.max():
            return
        own = np.array([record.scope == records[-1].scope for record in records])
        matrices = {names: _matrix(rows, names) for names in self._candidates()}
        unseen = {names: _unseen_logits(matrix, labels, folds) for names, matrix in matrices.items()}

        def kind(rate: float, places: BoolArray) -> _Kind:
            if not places.any():
                return _Kind(rate)
            tried = places & own if (places & own).any() else places
            errors = [(expit(logits[tried]) - labels[tried]) ** 2 for logits in unseen.values()]
            names = self._candidates()[_clearly_best(errors, episodes[tried])]
            found = fit_rescaling(unseen[names][places], labels[places], own[places], center=_logit(rate))
            return _Kind(rate, names, found)

        self._first, self._later = kind(self._first.rate, first), kind(self._later.rate, ~first)
        for names in {self._first.names, self._later.names} - {()}:
            self._forests[names] = CompactForest(_trees(TREES).fit(matrices[names], labels))

    def _candidates(self) -> list[Names]:
        """The sets of features to choose from."""
        plain, extended = self._plain_names, self._plain_names + feature_groups()[_PRECEDENTS]
        if self._precedents == "auto":
            return [plain, extended]
        return [extended] if self._precedents else [plain]

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns for each query the learned probability, the two strongest reasons, and the features."""
        rows: list[Mapping[str, float]] = [
            query_features(query, found, self.name) for query, found in zip(queries, precedents, strict=True)
        ]
        usages: list[Mapping[str, float]] = [{}] * len(rows)
        if self._scorer is not None:
            scored = scores_of(self._scorer, queries, precedents)
            rows = [{**row, **score} for row, (score, _) in zip(rows, scored, strict=True)]
            usages = [verdict.usage for _, verdict in scored]
        verdicts: dict[int, Verdict] = {}
        for word, kind in (("first", self._first), ("later", self._later)):
            places = [i for i, query in enumerate(queries) if (query.step_index == 0) == (word == "first")]
            if not places:
                continue
            chosen = [rows[place] for place in places]
            probabilities, reasons = self._judge_kind(kind, word, chosen)
            for place, probability, reason in zip(places, probabilities, reasons, strict=True):
                verdicts[place] = Verdict(float(probability), reason, self.name, usages[place], rows[place])
        return [verdicts[place] for place in range(len(rows))]

    def probabilities(self, rows: Sequence[Mapping[str, float]], first: Sequence[bool]) -> FloatArray:
        """The answers to steps given by their features alone, shape (n,).

        Args:
            rows: As stored with records; missing features count as 0.
            first: Which are first steps of episodes.
        """
        answers = np.empty(len(rows))
        for kind, places in ((self._first, np.array(first, bool)), (self._later, ~np.array(first, bool))):
            if places.any():
                chosen = [row for row, wanted in zip(rows, places, strict=True) if wanted]
                answers[places] = self._judge_kind(kind, "", chosen)[0]
        return answers

    def _judge_kind(
        self, kind: _Kind, word: str, rows: Sequence[Mapping[str, float]]
    ) -> tuple[FloatArray, list[str]]:
        """Probabilities and reasons for steps of one kind."""
        if kind.names not in self._forests:
            reason = f"{kind.rate:.2f} of the {word} steps so far were productive"
            return np.full(len(rows), kind.rate), [reason] * len(rows)
        raw, moved = self._forests[kind.names].explain(_matrix(rows, kind.names))
        answers = expit(kind.rescaling(_logits(raw), _logit(kind.rate)))
        suffix = f"; rate of {word} steps {kind.rate:.2f}"
        return answers, [
            _reasons(kind.names, row, change) + suffix for row, change in zip(rows, moved, strict=True)
        ]


def _reasons(names: Names, features: Mapping[str, float], moved: FloatArray) -> str:
    strongest = np.argsort(-np.abs(moved), kind="stable")[:2]
    return ", ".join(
        f"{names[index]} {features.get(names[index], 0.0):.2g} "
        f"({'raises' if moved[index] > 0 else 'lowers'} by {abs(moved[index]):.2f})"
        for index in strongest
    )


def _rate(labels: BoolArray) -> float:
    return float((labels.sum() + 0.5) / (labels.size + 1))


def _trees(count: int) -> ExtraTreesClassifier:
    return ExtraTreesClassifier(count, min_samples_leaf=MIN_LEAF, random_state=0, n_jobs=1)


def _matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> FloatArray:
    matrix = np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=np.float64)
    return np.clip(np.nan_to_num(matrix, copy=False), -_LARGEST, _LARGEST)  # imported features may hold any


def _episode_numbers(records: Sequence[Record]) -> IntArray:
    numbers = {episode: place for place, episode in enumerate(dict.fromkeys(r.episode_id for r in records))}
    return np.array([numbers[record.episode_id] for record in records])


def _clearly_best(errors: Sequence[FloatArray], episodes: IntArray) -> int:
    """0, unless the second has the smaller errors by more than one standard error over episodes.

    Args:
        errors: One or two arrays of shape (n,), the simpler candidate's first.
        episodes: Shape (n,).

    Source: the one-standard-error rule, Breiman et al. (1984).
    """
    if len(errors) == 1:
        return 0
    _, places = np.unique(episodes, return_inverse=True)
    gains = np.bincount(places, weights=errors[0] - errors[1])
    return int(gains.size > 1 and gains.sum() > gains.std(ddof=1) * np.sqrt(gains.size))


def _unseen_logits(matrix: FloatArray, labels: NDArray[np.int8], folds: IntArray) -> FloatArray:
    """What forests say of the steps of episodes that they were not fitted on, shape (n,)."""
    said = np.empty(labels.size)
    for fold in range(_FOLDS):
        held_out = folds == fold
        others = labels[~held_out]
        if others.min() == others.max():
            said[held_out] = _rate(others.astype(bool))
        else:
            forest = _trees(TRIAL_TREES).fit(matrix[~held_out], others)
            said[held_out] = forest.predict_proba(matrix[held_out])[:, 1]
    return _logits(said)


def _logits(probabilities: FloatArray) -> FloatArray:
    found: FloatArray = logit(np.clip(probabilities, _LIMIT, 1 - _LIMIT))
    return found


def _logit(probability: float) -> float:
    return float(_logits(np.array([probability]))[0])


def _names_without(groups: str) -> Names:
    """The features of all groups but the named ones and those about precedents."""
    left_out = {_PRECEDENTS, *(name.strip() for name in groups.split(",") if name.strip())}
    known = feature_groups()
    for name in left_out - {_PRECEDENTS}:
        if name not in known:
            raise ConfigurationError(
                f"without is {groups!r}: {name!r} is no group of features. Choose from "
                f"{', '.join(group for group in known if group != _PRECEDENTS)}."
            )
    return tuple(name for group, names in known.items() if group not in left_out for name in names)
