"""The curve over the stream: how calibration and skill come about as the bank fills."""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ceb_gym.errors import ConfigurationError, MetricInputError
from ceb_gym.evaluation.metric_inputs import BoolArray, FloatArray, check_correct, split_scored
from ceb_gym.evaluation.weighted import DEFAULT_BINS, IntArray, SortedSteps, WeightedMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_METRICS: Final = {"ece": "ECE", "brier_skill": "Brier skill"}
SPANS: Final = {"windowed": "windowed", "cumulative": "cumulative"}
MOST_POINTS: Final = 50
LEAST_WINDOW: Final = 10

_WINDOW_SHARE = 0.1
_INCHES = (9.0, 6.0)
_DOTS_PER_INCH = 120

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """ECE and Brier skill of several estimators after so many episodes.

    Attributes:
        episodes: Number of episodes that were over, ascending, at most 50 points.
        window: How many episodes a windowed value covers: a tenth of all, at least 10.
        values: By estimator name, span ("windowed": the last `window` episodes, "cumulative": all so far)
            and metric ("ece", "brier_skill"): a value per point. None where it is undefined, and where fewer
            than `window` episodes are over.
    """

    episodes: tuple[int, ...]
    window: int
    values: Mapping[str, Mapping[str, Mapping[str, Values]]]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON can hold them."""
        return {
            "episodes": list(self.episodes),
            "window": self.window,
            "estimators": {
                name: {
                    span: {metric: list(points) for metric, points in metrics.items()}
                    for span, metrics in spans.items()
                }
                for name, spans in self.values.items()
            },
        }


def curve_over_stream(
    confidence: Mapping[str, Sequence[float | None]],
    correct: Sequence[bool] | BoolArray,
    episodes: Sequence[int],
    n_episodes: int,
) -> Curve:
    """Computes windowed and cumulative values over a run.

    Args:
        confidence: Shape (n,) by estimator name, in [0, 1]; None for unscored steps, which are left out.
        correct: Shape (n,), whether each step was productive.
        episodes: Shape (n,), the number of each step's episode, from 0.
        n_episodes: Number of episodes of the run, those without a labelled step too.

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.
    """
    labels = check_correct(correct, len(episodes))
    numbers: IntArray = np.asarray(episodes, dtype=np.int64)
    if not labels.size or numbers.min() < 0 or numbers.max() >= n_episodes:
        raise MetricInputError(f"There are {n_episodes} episodes, but a step is of another; number from 0.")
    ends = np.unique(np.linspace(1, n_episodes, min(n_episodes, MOST_POINTS)).round().astype(np.int64))
    window = max(LEAST_WINDOW, ceil(n_episodes * _WINDOW_SHARE))
    starts = {"windowed": ends - window, "cumulative": np.zeros_like(ends)}
    values: dict[str, dict[str, dict[str, Values]]] = {}
    for name, scores in confidence.items():
        if len(scores) != len(labels):
            raise MetricInputError(f"There are {len(scores)} confidences of {name}; score all steps.")
        values[name] = {
            span: _values(scores, labels, numbers, starts[span], ends, window if span == "windowed" else 1)
            for span in SPANS
        }
    return Curve(tuple(ends.tolist()), window, values)


def _values(
    scores: Sequence[float | None],
    labels: BoolArray,
    numbers: IntArray,
    starts: IntArray,
    ends: IntArray,
    least_end: int,
) -> dict[str, Values]:
    scored, confidence = split_scored(scores)
    if not confidence.size:
        return {metric: (None,) * len(ends) for metric in CURVE_METRICS}
    own = numbers[scored]
    weights = ((own >= starts[:, None]) & (own < ends[:, None])).astype(np.float64)
    table = WeightedMetrics(SortedSteps(confidence, labels[scored]), weights)
    found = {
        "ece": table.expected_calibration_error(DEFAULT_BINS, "width"),
        "brier_skill": table.brier_skill(),
    }
    return {metric: _points(found[metric], ends >= least_end) for metric in CURVE_METRICS}


def _points(values: FloatArray, covered: BoolArray) -> Values:
    return tuple(
        float(value) if known and np.isfinite(value) else None
        for value, known in zip(values, covered, strict=True)
    )


def save_curve(path: str | os.PathLike[str], curve: Curve, *, title: str, names: Mapping[str, str]) -> None:
    """Writes the curve as a PNG; the same input gives the same bytes.

    Args:
        path: The file to write.
        curve: The values.
        title: Stands above the figure.
        names: What an estimator is called in the legend, by its name; only these are drawn.

    Raises:
        ConfigurationError: If matplotlib is not installed or the file cannot be written.
    """
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigurationError(
            "The curve needs matplotlib, which is missing; run `pip install 'ceb-gym[plots]'`."
        ) from error
    # The figure is made without pyplot, which would pick a screen and keep every figure alive.
    figure: Figure = module.Figure(figsize=_INCHES, layout="constrained")
    panels = figure.subplots(len(CURVE_METRICS), len(SPANS), sharex=True, sharey="row")
    for row, metric in enumerate(CURVE_METRICS):
        for column, span in enumerate(SPANS):
            _draw(panels[row][column], curve, span, metric, names)
    panels[0][0].set_ylim(bottom=0.0)  # once all is drawn: it fixes the upper end, too
    panels[0][0].legend(loc="upper right")
    figure.suptitle(title, parse_math=False)  # task names and paths may hold dollar signs
    image = io.BytesIO()
    # The version of matplotlib stands in the file unless it is left out by name.
    figure.savefig(image, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    try:
        Path(path).write_bytes(image.getvalue())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}.") from error


def _draw(axes: Axes, curve: Curve, span: str, metric: str, names: Mapping[str, str]) -> None:
    for name, shown in names.items():
        values = [np.nan if value is None else value for value in curve.values[name][span][metric]]
        # A name that starts with an underscore would be left out of the legend.
        axes.plot(curve.episodes, values, marker=".", label=shown.lstrip("_").replace("$", r"\$"))
    if metric == "brier_skill":
        axes.axhline(0.0, linestyle="--", color="0.6")
    if metric == "ece":
        over = f"over the last {curve.window} episodes" if span == "windowed" else "over all episodes so far"
        axes.set_title(over)
    else:
        axes.set_xlabel("episodes")
    if span == "windowed":
        axes.set_ylabel(CURVE_METRICS[metric])
