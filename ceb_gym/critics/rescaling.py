"""How far to trust a model's answers, from what it said of steps that it had not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

FloatArray = NDArray[np.float64]

_SLOPE, _SLOPE_SPREAD = 0.5, 0.3  # a model from few records says too much: half of it is believed at first
_SHIFT_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class Rescaling:
    """A line through logits: `center + slope * (logit - center) + shift`."""

    slope: float = 0.0
    shift: float = 0.0

    def __call__(self, logits: FloatArray, center: float) -> FloatArray:
        """Returns the rescaled logits, shape as given."""
        return center + self.slope * (logits - center) + self.shift


def fit_rescaling(
    logits: FloatArray, labels: NDArray[np.int8], own: NDArray[np.bool_], *, center: float
) -> Rescaling:
    """The line under which the labels are most probable, with normal priors on slope and shift.

    The slope is learned from all steps. Where some come from other scopes, whose rates may differ, the shift
    is that of the own scope's steps.

    Args:
        logits: Shape (n,), what a model said of each step without having seen its episode.
        labels: Shape (n,), 0 or 1.
        own: Shape (n,), which steps are of the own scope.
        center: The logit that a slope of 0 gives.

    Source: Platt (1999), with priors.
    """
    away = logits - center
    slope, shift = _most_probable(away, center, labels, slope=None)
    if not own.all():
        _, shift = _most_probable(away[own], center, labels[own], slope=slope)
    return Rescaling(slope, shift)


def _most_probable(
    away: FloatArray, center: float, labels: NDArray[np.int8], *, slope: float | None
) -> tuple[float, float]:
    """Slope (at least 0, unless it is given) and shift."""

    def loss(line: FloatArray) -> tuple[float, FloatArray]:
        margins = center + line[0] * away + line[1]
        misfit = (np.logaddexp(0.0, margins) - labels * margins).sum()
        pulls = np.array([(line[0] - _SLOPE) / _SLOPE_SPREAD, line[1] / _SHIFT_SPREAD])
        excess = expit(margins) - labels
        gradient = np.array([excess @ away, excess.sum()]) + pulls / (_SLOPE_SPREAD, _SHIFT_SPREAD)
        return float(misfit + pulls @ pulls / 2), gradient

    bounds = (0.0, None) if slope is None else (slope, slope)
    start = np.array([_SLOPE if slope is None else slope, 0.0])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[bounds, (None, None)])
    return float(found.x[0]), float(found.x[1])
