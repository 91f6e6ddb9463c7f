"""Checks what metrics are computed from: scores, labels, binnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ceb_gym.errors import ConfigurationError, MetricInputError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Binning = Literal["width", "mass"]


def split_scored(confidence: Sequence[float | None] | FloatArray) -> tuple[BoolArray, FloatArray]:
    """Splits off the steps without a score.

    Args:
        confidence: Shape (n,), in [0, 1]; None for unscored steps.

    Returns:
        Which steps are scored, shape (n,), and the scores of those, shape (n_scored,).

    Raises:
        MetricInputError: If n is 0, or a score is no number from 0 to 1; it names value and position.
    """
    if len(confidence) == 0:
        raise MetricInputError("No metric is defined for no steps; check what was selected.")
    scored = np.fromiter((score is not None for score in confidence), np.bool_, len(confidence))
    scores = np.array(
        [_checked_score(score, position) for position, score in enumerate(confidence) if score is not None],
        dtype=np.float64,
    )
    return scored, scores


def check_confidence(confidence: Sequence[float] | FloatArray) -> FloatArray:
    """Returns the scores as an array of shape (n,).

    Raises:
        MetricInputError: If n is 0, or a score is no number from 0 to 1; it names value and position.
    """
    scored, scores = split_scored(confidence)
    if not scored.all():
        position = int(np.argmin(scored))
        raise MetricInputError(f"The step at position {position} is unscored; leave unscored steps out.")
    return scores


def check_correct(correct: Sequence[bool] | BoolArray, n_steps: int) -> BoolArray:
    """Returns the labels as an array of shape (n_steps,).

    Raises:
        MetricInputError: If the number differs or one is neither true nor false; it names value and position.
    """
    if len(correct) != n_steps:
        raise MetricInputError(f"There are {n_steps} confidences and {len(correct)} labels; give one each.")
    labels = np.zeros(n_steps, dtype=np.bool_)
    for position, label in enumerate(correct):
        if not isinstance(label, (bool, int, float, np.generic)) or label not in (0, 1):
            raise MetricInputError(
                f"Label {label!r} at position {position} is neither true nor false; "
                "leave unlabelled steps out."
            )
        labels[position] = bool(label)
    return labels


def check_binning(num_bins: int, binning: Binning) -> None:
    """Refuses a binning that has no meaning.

    Raises:
        ConfigurationError: If there is no bin, or the kind is unknown.
    """
    if isinstance(num_bins, bool) or not isinstance(num_bins, (int, np.integer)) or num_bins < 1:
        raise ConfigurationError(f"num_bins must be a whole number from 1, got {num_bins!r}.")
    if binning not in ("width", "mass"):
        raise ConfigurationError(f'binning must be "width" or "mass", got {binning!r}.')


def _checked_score(score: object, position: int) -> float:
    if isinstance(score, (bool, int, float, np.generic)):
        value = float(score)
        if 0.0 <= value <= 1.0:
            return value
    raise MetricInputError(
        f"Confidence {score!r} at position {position} is no number from 0 to 1; give unscored steps as None."
    )
