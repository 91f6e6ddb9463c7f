"""Numbers as words: what a tokenizer that drops one-character tokens can still compare.

The paper's TF-IDF key sees text only, and `state: 3 || action: 2` has no term at all for it. So every number
becomes a word with its place in it (`state_03`), real numbers are binned at several widths at once so that
near values share words, and each word also comes joined with the action.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVELS = (4, 8, 16)
TILES_PER_SIDE = 8
GREY_LEVELS = 8
MAX_DIMENSIONS = 64
_LARGE = 10**15
_UNBOUNDED = 1e6  # bounds beyond this say nothing about where the values lie


def padded(value: int, count: int) -> str:
    """The integer with leading zeros, as wide as the largest of `count` values and at least two digits.

    A minus sign, at which a tokenizer would split the word, becomes an `m`.
    """
    sign = "m" if value < 0 else ""
    return f"{sign}{abs(value):0{max(2, len(str(max(count - 1, 0))))}d}"


def number_word(label: str, value: float) -> str:
    """One word for a number of which nothing is known but its value: `label_07`, `label_m2p5`."""
    if abs(value) < _LARGE and value == int(value):
        return f"{label}_{padded(int(value), 10)}"
    try:
        shown = f"{float(value):.4g}"
    except OverflowError:
        shown = "large"
    return f"{label}_{shown.replace('-', 'm').replace('.', 'p').replace('+', '')}"


class DimensionBins:
    """Words for one real number, binned at 4, 8 and 16 levels.

    Args:
        label: Names the dimension in each word, for example `obs_02`.
        edges: For each level the inner bin edges, ascending.
        kind: One letter that tells bins of different origin apart.
    """

    def __init__(self, label: str, edges: Sequence[Sequence[float]], kind: str) -> None:
        words = [
            [f"{label}_{kind}{count}_{padded(index, count)}" for index in range(count)] for count in LEVELS
        ]
        self._levels = [(list(inner), names) for inner, names in zip(edges, words, strict=True)]
        self._nan = f"{label}_nan"

    def words(self, value: float) -> list[str]:
        """One word a level; infinities fall in the outermost bins, NaN has a word of its own."""
        if value != value:
            return [self._nan]
        return [names[bisect_right(inner, value)] for inner, names in self._levels]


def is_bounded(low: float, high: float) -> bool:
    """Whether a dimension's bounds say where its values lie."""
    known = math.isfinite(low) and math.isfinite(high)
    return known and max(abs(low), abs(high)) <= _UNBOUNDED and low < high


def uniform_edges(low: float, high: float) -> list[list[float]]:
    """Inner edges of bins of equal width between two bounds, for each level."""
    return [[low + (high - low) * index / count for index in range(1, count)] for count in LEVELS]


def fixed_edges() -> list[list[float]]:
    """Inner edges for a number of unknown range: equal width on an inverse hyperbolic sine scale.

    They are as fine around 0 as far from it is coarse, and cover about +-400 before the last bin.
    """
    reach = math.asinh(400.0)
    return [[math.sinh(-reach + 2 * reach * index / count) for index in range(1, count)] for count in LEVELS]


def quantile_edges(values: NDArray[np.float64]) -> list[list[float]]:
    """Inner edges with about equally many of the given values in each bin; shape of `values` (n,)."""
    return [
        [float(edge) for edge in np.quantile(values, [index / count for index in range(1, count)])]
        for count in LEVELS
    ]


def image_tiles(image: NDArray[np.generic], low: float, high: float, label: str = "tile") -> list[str]:
    """Words `tile_ROW_COLUMN_gLEVEL` for the mean grey of 8 x 8 tiles; `..._nan` where there is none.

    Args:
        image: Shape (height, width) or (height, width, channels), at least 8 x 8.
        low: The value of black.
        high: The value of white.
        label: First part of each word.
    """
    scaled = np.clip((np.asarray(image, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    if scaled.ndim == 3:
        scaled = scaled.mean(axis=2)
    rows = np.array_split(np.arange(scaled.shape[0]), TILES_PER_SIDE)
    columns = np.array_split(np.arange(scaled.shape[1]), TILES_PER_SIDE)
    words = []
    for row, row_indices in enumerate(rows):
        band = scaled[row_indices[0] : row_indices[-1] + 1]
        for column, column_indices in enumerate(columns):
            mean = float(band[:, column_indices[0] : column_indices[-1] + 1].mean())
            level = f"g{min(int(mean * GREY_LEVELS), GREY_LEVELS - 1)}" if mean == mean else "nan"
            words.append(f"{label}_{row}_{column}_{level}")
    return words


def chunk_means(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Means of `count` consecutive chunks of a long flat array, shape (count,).

    Infinities of both signs in one chunk give NaN, sums beyond the largest float an infinity.
    """
    edges = np.linspace(0, values.size, count + 1).astype(np.intp)[:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(values, edges)
    sizes = np.diff(np.append(edges, values.size))
    return np.asarray(sums / sizes, dtype=np.float64)
