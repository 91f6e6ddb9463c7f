"""Recalibration of any critic: a monotone map from its raw score to the rate at which it was right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

from ceb_gym.critics.checks import checked_verdicts
from ceb_gym.errors import ConfigurationError, CriticError
from ceb_gym.protocols import Critic, LearningCritic
from ceb_gym.types import Precedents, Query, Record, Verdict

Recalibration = Literal["isotonic", "platt", "beta", "none"]
RECALIBRATIONS: tuple[Recalibration, ...] = ("isotonic", "platt", "beta", "none")
RAW_CONFIDENCE = "raw_confidence"
MIN_PAIRS = 50
NEWEST_PAIRS = 10_000  # bounds the cost of one fit; older scores say less about the critic as it is now
_FOLDS = 5
_LIMIT = 0.001
_PULL = 1.0
_PULL_OF_INTERCEPT = 1e-6  # only so that there is always one best answer
_MOST_STEPS = 50
_SMALLEST_STEP = 1e-9

FloatArray = NDArray[np.float64]
ScoreMap = Callable[[FloatArray], FloatArray]


class RecalibratedCritic:
    """Passes a critic's scores through monotone maps learned from its own banked scores and labels.

    Each source of verdicts (the critics of a cascade answer under their own names) has a map of its own, from
    the records that were scored by it. A map needs 50 such records and both classes, and is used only where,
    fitted without the episodes it is tried on, it lowers the Brier score: otherwise scores pass unchanged.

    A mapped verdict carries the raw score as `raw_confidence`, in `usage` and in the features stored with the
    step, so that later maps learn from raw scores and not from mapped ones. Unscored stays unscored.

    The critic learns at the revisions at which the maps do: each of the first 16, then 16 per doubling.

    Args:
        inner: The critic to recalibrate.
        method: "isotonic" (any non-decreasing map), "platt" or "beta" (smooth, for fewer records).

    Raises:
        ConfigurationError: If there is no such method, or the critic is recalibrated already.
    """

    incremental = False

    def __init__(self, inner: Critic, method: str) -> None:
        if method not in _METHODS:
            raise ConfigurationError(f"The recalibration is {method!r}: choose one of {', '.join(_METHODS)}.")
        if isinstance(inner, RecalibratedCritic):
            raise ConfigurationError(
                f"The critic {inner.name} is recalibrated by {inner.method} already: recalibrate it once."
            )
        self.name: str = inner.name
        self.k: int = inner.k
        self.method: str = method
        self._inner = inner
        self._maps: Mapping[str, ScoreMap] = {}

    def fit(self, records: Sequence[Record], previous: Critic | None = None) -> RecalibratedCritic:
        """Returns the critic that has learned, where it learns, with the maps learned from the records."""
        inner: Critic = self._inner
        if isinstance(inner, LearningCritic):
            inner = inner.fit(records)
            if not isinstance(inner, Critic):
                raise CriticError(f"Critic {self.name} returned {inner!r} from `fit`, which is no critic.")
        fitted = RecalibratedCritic(inner, self.method)
        by_source: dict[str, list[Record]] = {}
        for record in records:
            if record.confidence is not None:
                by_source.setdefault(record.critic, []).append(record)
        found = {source: _learned_map(self.method, scored) for source, scored in by_source.items()}
        fitted._maps = {source: learned for source, learned in found.items() if learned is not None}
        return fitted

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns the critic's verdicts with mapped confidences. Raises CriticError as the critic does."""
        verdicts = checked_verdicts(self._inner, self._inner.judge(queries, precedents), len(queries))
        return [self._mapped(verdict) for verdict in verdicts]

    def _mapped(self, verdict: Verdict) -> Verdict:
        learned = self._maps.get(verdict.source)
        raw = verdict.confidence
        if learned is None or raw is None or RAW_CONFIDENCE in verdict.features:  # the last: mapped already
            return verdict
        # one at a time: a batch may round otherwise, and a lane must get the same score alone as among others
        confidence = float(learned(np.array([raw]))[0])
        kept = {RAW_CONFIDENCE: raw}
        return replace(
            verdict,
            confidence=min(max(confidence, 0.0), 1.0),
            usage={**verdict.usage, **kept},
            features={**verdict.features, **kept},
        )


def recalibrated(critic: Critic, method: str) -> Critic:
    """Returns the critic as it is for "none", else recalibrated by the method."""
    return critic if method == "none" else RecalibratedCritic(critic, method)


def _learned_map(method: str, records: Sequence[Record]) -> ScoreMap | None:
    """The map learned from records of one source; None where scores had better pass unchanged."""
    pairs = [(_raw_score(record), record) for record in records[-NEWEST_PAIRS:]]
    valid = [(raw, record) for raw, record in pairs if 0.0 <= raw <= 1.0]  # imported features may hold any
    if len(valid) < MIN_PAIRS:
        return None
    scores = np.array([raw for raw, _ in valid], dtype=np.float64)
    labels = np.array([record.label for _, record in valid], dtype=np.float64)
    episodes = {episode: place for place, episode in enumerate(dict.fromkeys(r.episode_id for _, r in valid))}
    if len(episodes) < 2 or labels.min() == labels.max():
        return None
    folds = np.array([episodes[record.episode_id] % _FOLDS for _, record in valid])
    fit = _METHODS[method]
    tried = _cross_fitted(fit, scores, labels, folds)
    if np.mean((tried - labels) ** 2) >= np.mean((scores - labels) ** 2):
        return None
    return fit(scores, labels)


def _raw_score(record: Record) -> float:
    """The score before any map; the banked confidence where none was applied. NaN for unscored."""
    confidence = float("nan") if record.confidence is None else record.confidence
    return float(record.features.get(RAW_CONFIDENCE, confidence))


def _cross_fitted(
    fit: Callable[[FloatArray, FloatArray], ScoreMap],
    scores: FloatArray,
    labels: FloatArray,
    folds: NDArray[np.int_],
) -> FloatArray:
    """Each score mapped by what was learned from the other folds; unchanged where these have one class."""
    tried = scores.copy()
    for fold in range(_FOLDS):
        held_out = folds == fold
        others = labels[~held_out]
        if held_out.any() and others.size and others.min() < others.max():
            tried[held_out] = fit(scores[~held_out], others)(scores[held_out])
    return tried


@dataclass(frozen=True, slots=True)
class _Steps:
    """Linear between non-decreasing points, constant outside of them."""

    scores: FloatArray
    values: FloatArray

    def __call__(self, raw: FloatArray) -> FloatArray:
        mapped: FloatArray = np.interp(raw, self.scores, self.values)
        return mapped


@dataclass(frozen=True, slots=True)
class _Curve:
    """A logistic function of columns that rise with the score."""

    columns: Callable[[FloatArray], FloatArray]
    slopes: FloatArray
    intercept: float

    def __call__(self, raw: FloatArray) -> FloatArray:
        mapped: FloatArray = expit(self.columns(raw) @ self.slopes + self.intercept)
        return mapped


def _fit_isotonic(scores: FloatArray, labels: FloatArray) -> ScoreMap:
    """Source: Zadrozny and Elkan (2002)."""
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(scores, labels)
    return _Steps(fitted.X_thresholds_, fitted.y_thresholds_)


def _fit_platt(scores: FloatArray, labels: FloatArray) -> ScoreMap:
    """Source: Platt (1999), on the logit of the score."""
    return _fit_curve(_logit_column, scores, labels)


def _fit_beta(scores: FloatArray, labels: FloatArray) -> ScoreMap:
    """Source: Kull, Silva Filho and Flach (2017)."""
    return _fit_curve(_beta_columns, scores, labels)


def _logit_column(scores: FloatArray) -> FloatArray:
    logit: FloatArray = _beta_columns(scores).sum(axis=1, keepdims=True)
    return logit


def _beta_columns(scores: FloatArray) -> FloatArray:
    inner = np.clip(scores, _LIMIT, 1 - _LIMIT)
    return np.stack([np.log(inner), -np.log1p(-inner)], axis=1)


def _fit_curve(
    columns: Callable[[FloatArray], FloatArray], scores: FloatArray, labels: FloatArray
) -> ScoreMap:
    """Logistic regression with slopes of at least 0, drawn to 1: with an intercept of 0 that is identity."""
    matrix = np.column_stack([columns(scores), np.ones_like(scores)])
    n_slopes = matrix.shape[1] - 1
    target = np.array([1.0] * n_slopes + [0.0])
    pull = np.array([_PULL] * n_slopes + [_PULL_OF_INTERCEPT])
    lowest = np.array([0.0] * n_slopes + [-np.inf])

    def loss(weights: FloatArray) -> float:
        margins = matrix @ weights
        misfit = (np.logaddexp(0.0, margins) - labels * margins).sum()
        return float(misfit + pull @ (weights - target) ** 2 / 2)

    def newton_step(weights: FloatArray) -> FloatArray:
        chances = expit(matrix @ weights)
        gradient = matrix.T @ (chances - labels) + pull * (weights - target)
        curvature = (matrix.T * (chances * (1 - chances))) @ matrix + np.diag(pull)
        free = (weights > lowest) | (gradient < 0)
        step = np.zeros_like(weights)
        step[free] = -np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        return step

    weights = _descend(loss, newton_step, target, lowest)
    return _Curve(columns, weights[:-1], float(weights[-1]))


def _descend(
    loss: Callable[[FloatArray], float],
    newton_step: Callable[[FloatArray], FloatArray],
    start: FloatArray,
    lowest: FloatArray,
) -> FloatArray:
    """Where a convex loss is least among weights of at least `lowest`.

    Source: projected Newton steps, Bertsekas (1982).
    """
    weights = start
    for _ in range(_MOST_STEPS):
        step, length, before = newton_step(weights), 1.0, loss(weights)
        moved = np.maximum(weights + step, lowest)
        while loss(moved) > before and length > _SMALLEST_STEP:
            length /= 2
            moved = np.maximum(weights + length * step, lowest)
        change = float(np.abs(moved - weights).max())
        weights = moved
        if change < _SMALLEST_STEP:
            break
    return weights


_METHODS: Mapping[str, Callable[[FloatArray, FloatArray], ScoreMap]] = {
    "isotonic": _fit_isotonic,
    "platt": _fit_platt,
    "beta": _fit_beta,
}
