"""The reliability diagram: how often steps of about the same confidence were productive."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ceb_gym.errors import ConfigurationError
from ceb_gym.evaluation.metric_inputs import BoolArray, check_binning, check_correct, split_scored
from ceb_gym.evaluation.weighted import DEFAULT_BINS, SortedSteps, WeightedMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (5.0, 6.0)
_DOTS_PER_INCH = 120


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """The steps whose confidence lies in [low, high), in the last bin in [low, high].

    Attributes:
        low: Lower edge.
        high: Upper edge.
        count: Number of steps.
        mean_confidence: Mean confidence of the steps; None in an empty bin.
        positive_rate: Share of productive steps; None in an empty bin.
    """

    low: float
    high: float
    count: int
    mean_confidence: float | None
    positive_rate: float | None


def reliability_bins(
    confidence: Sequence[float | None],
    correct: Sequence[bool] | BoolArray,
    *,
    num_bins: int = DEFAULT_BINS,
) -> list[ReliabilityBin]:
    """Groups steps into bins of equal width.

    Args:
        confidence: Shape (n,), in [0, 1]; None for unscored steps, which are left out.
        correct: Shape (n,), whether each step was productive.
        num_bins: Number of bins, at least 1.

    Raises:
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.
    """
    check_binning(num_bins, "width")
    scored, scores = split_scored(confidence)
    labels = check_correct(correct, len(confidence))
    if not scores.size:
        return [ReliabilityBin(k / num_bins, (k + 1) / num_bins, 0, None, None) for k in range(num_bins)]
    table = WeightedMetrics(SortedSteps(scores, labels[scored]), np.ones((1, scores.size)))
    counts, confidences, productive = (row[0] for row in table.bins(num_bins, "width"))
    return [
        ReliabilityBin(
            low=k / num_bins,
            high=(k + 1) / num_bins,
            count=int(counts[k]),
            mean_confidence=float(confidences[k] / counts[k]) if counts[k] else None,
            positive_rate=float(productive[k] / counts[k]) if counts[k] else None,
        )
        for k in range(num_bins)
    ]


def has_matplotlib() -> bool:
    """Whether diagrams can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def save_reliability_diagram(
    path: str | os.PathLike[str],
    confidence: Sequence[float | None],
    correct: Sequence[bool] | BoolArray,
    *,
    title: str,
    num_bins: int = DEFAULT_BINS,
) -> None:
    """Writes the reliability diagram as a PNG; the same input gives the same bytes.

    Above, the positive rate of each bin over its mean confidence, with the diagonal of perfect calibration;
    below, how many steps each bin holds.

    Args:
        path: The file to write.
        confidence: Shape (n,), in [0, 1]; None for unscored steps, which are left out.
        correct: Shape (n,), whether each step was productive.
        title: Stands above the diagram.
        num_bins: Bins of equal width.

    Raises:
        ConfigurationError: If matplotlib is not installed or the file cannot be written.
        MetricInputError: If the lengths differ, n is 0, or a score or label has no meaning.
    """
    figure = _draw(reliability_bins(confidence, correct, num_bins=num_bins), title)
    image = io.BytesIO()
    # The version of matplotlib stands in the file unless it is left out by name.
    figure.savefig(image, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": None})
    try:
        Path(path).write_bytes(image.getvalue())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror or error}.") from error


def _draw(bins: Sequence[ReliabilityBin], title: str) -> Figure:
    # The figure is made without pyplot, which would pick a screen and keep every figure alive.
    try:
        module = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigurationError(
            "Reliability diagrams need matplotlib, which is missing; run `pip install 'ceb-gym[plots]'`."
        ) from error
    figure: Figure = module.Figure(figsize=_INCHES, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _draw_rates(upper, bins)
    _draw_counts(lower, bins)
    # Task names and paths may hold dollar signs, which are no formulas here.
    upper.set_title(title, parse_math=False)
    return figure


def _draw_rates(axes: Axes, bins: Sequence[ReliabilityBin]) -> None:
    axes.plot([0, 1], [0, 1], linestyle="--", color="0.6", label="perfect calibration")
    filled = [item for item in bins if item.count]
    confidences = [item.mean_confidence or 0.0 for item in filled]
    rates = [item.positive_rate or 0.0 for item in filled]
    axes.vlines(confidences, confidences, rates, color="tab:red", linewidth=2, label="gap")
    axes.plot(confidences, rates, marker="o", color="tab:blue", clip_on=False, label="observed")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of productive steps")
    axes.legend(loc="upper left")


def _draw_counts(axes: Axes, bins: Sequence[ReliabilityBin]) -> None:
    bars = axes.bar(
        [item.low for item in bins],
        [item.count for item in bins],
        width=1.0 / len(bins),
        align="edge",
        color="tab:blue",
        edgecolor="white",
    )
    # A bin of one step beside one of a thousand has no visible bar.
    axes.bar_label(bars, [f"{item.count:,}" if item.count else "" for item in bins], fontsize=7)
    axes.margins(y=0.15)
    axes.set_xlabel("confidence")
    axes.set_ylabel("steps")
