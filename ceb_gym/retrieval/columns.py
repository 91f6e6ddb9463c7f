"""One loop in C: adding some weighted sparse columns to a vector, in place."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from ceb_gym.retrieval.analyzer import Int32Array, IntArray
from ceb_gym.retrieval.segment import Float32Array

try:
    # scipy's public product copies the chosen columns first and gives a new vector, which takes several times
    # as long here. This function behind it has been the same for many years; should it go, the product does.
    from scipy.sparse._sparsetools import csc_matvec
except ImportError:  # pragma: no cover - no such scipy exists yet
    csc_matvec = None


def add_columns(
    starts: Int32Array,
    rows: Int32Array,
    values: Float32Array,
    chosen: IntArray,
    weights: Float32Array,
    sums: Float32Array,
) -> None:
    """Adds the weighted sum of chosen columns of a sparse matrix to `sums`.

    Args:
        starts: Shape (columns + 1,), where each column starts in `rows` and `values`.
        rows: Shape (entries,), positions in `sums`.
        values: Shape (entries,).
        chosen: Shape (m,), numbers of columns.
        weights: Shape (m,), of the chosen columns.
        sums: Changed in place.
    """
    if csc_matvec is None:
        add_columns_by_product(starts, rows, values, chosen, weights, sums)
        return
    size = len(sums)
    for place, column in enumerate(chosen.tolist()):
        csc_matvec(size, 1, starts[column : column + 2], rows, values, weights[place : place + 1], sums)


def add_columns_by_product(
    starts: Int32Array,
    rows: Int32Array,
    values: Float32Array,
    chosen: IntArray,
    weights: Float32Array,
    sums: Float32Array,
) -> None:
    """`add_columns` with nothing but scipy's public functions."""
    matrix = sparse.csc_matrix((values, rows, starts), (len(sums), len(starts) - 1))
    np.add(sums, matrix[:, chosen] @ weights, out=sums)
