"""The `precedent` critic: learned from the bank alone, without a language model."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier

from ceb_gym.critics.forest import CompactForest, FloatArray
from ceb_gym.errors import ConfigurationError
from ceb_gym.features import (
    FEATURES_VERSION,
    LOOP_WINDOW,
    VERSION_KEY,
    feature_groups,
    is_repeated,
    query_features,
)
from ceb_gym.protocols import Critic
from ceb_gym.types import HistoryItem, Precedents, Query, Record, Verdict

MIN_RECORDS_OF_A_CLASS = 5
NEWEST_RECORDS = 4_000  # bounds the cost of one fit; older steps say less about how the agent acts now
TREES = 100
TRIAL_TREES = 40
MIN_LEAF = 5
_MIN_TRIAL_RECORDS = 60
_SHRINKAGE = 20.0
_HISTORY_STEPS = 16
_LIMIT = 0.003
_PRECEDENTS = "precedents"

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Part:
    """What was learned about one kind of step: the first of an episode, or the later ones.

    Attributes:
        rate: Smoothed share of productive records.
        trust: Weight in [0, 1] of the forest against the rate, by how many records the rarer class has;
            0 where these are too few.
    """

    rate: float
    trust: float


class PrecedentCritic:
    """Judges by what the bank's records had in common: a forest over features of the query.

    First steps of episodes and later ones have rates of their own, since first steps often differ for one
    plain reason (any progress beats none). The forest's answer is drawn to that rate on the logit scale, by
    how many records the step's kind has of its rarer class: with an empty bank the answer is 0.5, with a
    young one the rate, later the forest.

    Args:
        k: Precedents per class that the features look at.
        precedents: Whether the features about precedents are used: "auto" does where they predict the newest
            quarter of the bank's own episodes better than the others alone.
        without: Groups of features to leave out, joined by commas: position, action, loops, outcomes. For
            ablations.

    Source: extremely randomised trees, Geurts et al. (2006); features in `ceb_gym.features`.
    """

    incremental = False

    def __init__(self, k: int = 5, precedents: bool | str = "auto", without: str = "") -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigurationError(f"k is {k!r}: give a whole number of precedents per class, at least 1.")
        if precedents not in (True, False, "auto"):
            raise ConfigurationError(f'precedents is {precedents!r}: give "auto", true or false.')
        if not isinstance(without, str):
            raise ConfigurationError(f"without is {without!r}: give names of groups, joined by commas.")
        self.k = k
        self.name = "precedent"
        self._precedents = precedents
        self._without = without
        self._plain_names = _names_without(without)
        if not self._plain_names and precedents is not True:
            raise ConfigurationError(
                f"without is {without!r}: no features are left. Leave out fewer, or give precedents=true."
            )
        self._names: tuple[str, ...] = ()
        self._forest: CompactForest | None = None
        self._first = self._later = _Part(0.5, 0.0)
        self.refitted_from_text = 0

    @property
    def uses_precedents(self) -> bool:
        """Whether the fitted forest looks at precedents."""
        return any(name in feature_groups()[_PRECEDENTS] for name in self._names)

    def fit(self, records: Sequence[Record], previous: Critic | None = None) -> PrecedentCritic:
        """Learns from the records' stored features; where they are of another version, from their text."""
        fitted = PrecedentCritic(self.k, self._precedents, self._without)
        if not records:
            return fitted
        first = np.array([record.step_index == 0 for record in records])
        labels = np.array([record.label for record in records])
        base = float((labels.sum() + 1) / (labels.size + 2))
        fitted._first, fitted._later = _part(labels[first], base), _part(labels[~first], base)
        if fitted._first.trust or fitted._later.trust:
            newest = records[-NEWEST_RECORDS:]
            rows, fitted.refitted_from_text = _feature_rows(newest)
            fitted._names = self._chosen_names(newest, rows)
            forest = _trees(TREES).fit(_matrix(rows, fitted._names), labels[-NEWEST_RECORDS:].astype(np.int8))
            fitted._forest = CompactForest(forest) if len(forest.classes_) == 2 else None
        return fitted

    def _chosen_names(
        self, records: Sequence[Record], rows: Sequence[Mapping[str, float]]
    ) -> tuple[str, ...]:
        """The features to use; "auto" tries both sets on the newest quarter of the episodes."""
        without, with_them = self._plain_names, self._plain_names + feature_groups()[_PRECEDENTS]
        if self._precedents != "auto":
            return with_them if self._precedents else without
        cut = _newest_quarter(records)
        labels = np.array([record.label for record in records]).astype(np.int8)
        if cut < _MIN_TRIAL_RECORDS or len(set(labels[:cut].tolist())) < 2:
            return without
        errors = []
        for names in (without, with_them):
            matrix = _matrix(rows, names)
            forest = _trees(TRIAL_TREES).fit(matrix[:cut], labels[:cut])
            errors.append(float(np.mean((forest.predict_proba(matrix[cut:])[:, 1] - labels[cut:]) ** 2)))
        return without if errors[0] <= errors[1] else with_them

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns for each query the learned probability, the two strongest reasons, and the features."""
        features = [
            query_features(query, found, self.name) for query, found in zip(queries, precedents, strict=True)
        ]
        learned: list[tuple[float, FloatArray] | None] = [None] * len(features)
        if self._forest is not None and features:
            probabilities, moved = self._forest.explain(_matrix(features, self._names))
            learned = list(zip(probabilities.tolist(), moved, strict=True))
        return [self._verdict(*each) for each in zip(queries, features, learned, strict=True)]

    def _verdict(
        self, query: Query, features: Mapping[str, float], learned: tuple[float, FloatArray] | None
    ) -> Verdict:
        part = self._first if query.step_index == 0 else self._later
        kind = "first" if query.step_index == 0 else "later"
        if learned is None or part.trust == 0:
            rationale = f"{part.rate:.2f} of the {kind} steps so far were productive"
            return Verdict(part.rate, rationale, self.name, features=features)
        probability, moved = learned
        logit = part.trust * _logit(probability) + (1 - part.trust) * _logit(part.rate)
        rationale = self._reasons(features, moved) + f"; rate of {kind} steps {part.rate:.2f}"
        return Verdict(1 / (1 + math.exp(-logit)), rationale, self.name, features=features)

    def _reasons(self, features: Mapping[str, float], moved: FloatArray) -> str:
        strongest = np.argsort(-np.abs(moved), kind="stable")[:2]
        return ", ".join(
            f"{self._names[index]} {features[self._names[index]]:.2g} "
            f"({'raises' if moved[index] > 0 else 'lowers'} by {abs(moved[index]):.2f})"
            for index in strongest
        )


def _part(labels: BoolArray, base: float) -> _Part:
    rarer = int(min(labels.sum(), labels.size - labels.sum()))
    trust = rarer / (rarer + _SHRINKAGE) if rarer >= MIN_RECORDS_OF_A_CLASS else 0.0
    return _Part(float((labels.sum() + base) / (labels.size + 1)), trust)


def _trees(count: int) -> ExtraTreesClassifier:
    return ExtraTreesClassifier(count, min_samples_leaf=MIN_LEAF, random_state=0, n_jobs=1)


def _matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> FloatArray:
    return np.array([[row.get(name, 0.0) for name in names] for row in rows], dtype=np.float64)


def _newest_quarter(records: Sequence[Record]) -> int:
    """Where the newest quarter of the records begins, at the beginning of an episode."""
    cut = len(records) * 3 // 4
    while 0 < cut < len(records) and records[cut].episode_id == records[cut - 1].episode_id:
        cut -= 1
    return cut


def _logit(probability: float) -> float:
    clipped = min(max(probability, _LIMIT), 1 - _LIMIT)
    return math.log(clipped / (1 - clipped))


def _names_without(groups: str) -> tuple[str, ...]:
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


def _feature_rows(records: Sequence[Record]) -> tuple[list[Mapping[str, float]], int]:
    """Each record's features, and how many had to be computed anew from text."""
    rows: list[Mapping[str, float]] = [record.features for record in records]
    stale = [index for index, row in enumerate(rows) if row.get(VERSION_KEY) != FEATURES_VERSION]
    if stale:
        computed = _features_from_text(records)
        for index in stale:
            rows[index] = computed[index]
    return rows, len(stale)


def _features_from_text(records: Sequence[Record]) -> list[Mapping[str, float]]:
    """Features of records that were judged by another version or critic: all but those about precedents."""
    places = sorted(range(len(records)), key=lambda i: (records[i].episode_id, records[i].step_index))
    history: deque[HistoryItem] = deque(maxlen=_HISTORY_STEPS)
    rows: list[Mapping[str, float]] = [{} for _ in records]
    episode = None
    for place in places:
        record = records[place]
        if record.episode_id != episode:
            episode = record.episode_id
            history.clear()
        actions = [item.action for item in history][-LOOP_WINDOW:]
        query = Query(
            env_id="",
            scope=record.scope,
            revision=0,
            episode_id=record.episode_id,
            task=record.task,
            state=record.state,
            action=record.action,
            history=tuple(history),
            repeated=is_repeated(record.action, actions),
            step_index=record.step_index,
        )
        rows[place] = query_features(query, Precedents(), "")
        history.append(HistoryItem(record.state, record.action, record.outcome, True, record.confidence))
    return rows
