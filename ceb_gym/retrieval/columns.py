"""One loop in C: adding weighted sparse columns to a vector in place."""

from __future__ import annotations

from scipy import sparse

from ceb_gym.retrieval.analyzer import Int32Array
from ceb_gym.retrieval.segment import Float32Array

try:
    # scipy's public product copies its operands and gives a new vector each time, which takes several times
    # as long here. This function behind it has been the same for many years; should it go, the product does.
    from scipy.sparse._sparsetools import csc_matvec
except ImportError:  # pragma: no cover - no such scipy exists yet
    csc_matvec = None


def add_columns(
    bounds: Int32Array, rows: Int32Array, values: Float32Array, weights: Float32Array, sums: Float32Array
) -> None:
    """Adds the weighted sum of sparse columns to `sums`.

    Args:
        bounds: Shape (columns + 1,), where each column starts in `rows` and `values`.
        rows: Shape (entries,), positions in `sums`.
        values: Shape (entries,).
        weights: Shape (columns,).
        sums: Changed in place.
    """
    if csc_matvec is None:
        add_columns_by_product(bounds, rows, values, weights, sums)
    else:
        csc_matvec(len(sums), len(weights), bounds, rows, values, weights, sums)


def add_columns_by_product(
    bounds: Int32Array, rows: Int32Array, values: Float32Array, weights: Float32Array, sums: Float32Array
) -> None:
    """`add_columns` with nothing but scipy's public functions."""
    sums += sparse.csc_matrix((values, rows, bounds), (len(sums), len(weights))) @ weights
