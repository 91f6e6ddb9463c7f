"""A fitted random forest as plain arrays: one row is judged in tens of microseconds, with reasons."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

FloatArray = NDArray[np.float64]


class CompactForest:
    """The trees of a scikit-learn forest for two classes, joined into arrays of nodes.

    Gives the same probabilities as `predict_proba`, without its overhead of milliseconds a call, and says how
    much each feature moved them.

    Args:
        forest: Fitted on labels 0 and 1.
    """

    def __init__(self, forest: RandomForestClassifier | ExtraTreesClassifier) -> None:
        trees = [estimator.tree_ for estimator in forest.estimators_]
        offsets = np.cumsum([0, *(tree.node_count for tree in trees)])
        self._roots = offsets[:-1].astype(np.intp)
        self._depth = max(tree.max_depth for tree in trees)
        inner = [tree.children_left >= 0 for tree in trees]
        own = [offset + np.arange(tree.node_count) for tree, offset in zip(trees, offsets, strict=False)]
        self._feature = np.concatenate([np.maximum(tree.feature, 0) for tree in trees])
        self._threshold = np.concatenate([tree.threshold for tree in trees])
        # a leaf is its own child, so that all trees can be walked down equally far
        self._left, self._right = (
            np.concatenate(
                [
                    np.where(is_inner, getattr(tree, side) + offset, nodes)
                    for tree, offset, nodes, is_inner in zip(trees, offsets, own, inner, strict=False)
                ]
            )
            for side in ("children_left", "children_right")
        )
        shares = [tree.value[:, 0, :] / tree.value[:, 0, :].sum(axis=1, keepdims=True) for tree in trees]
        self._value = np.concatenate([share[:, 1] for share in shares])

    def explain(self, matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns the probability of class 1 of each row, and how much each feature moved it.

        Args:
            matrix: Shape (n_rows, n_features).

        Returns:
            Probabilities, shape (n_rows,), and the sums over the trees' paths of the change of the node's
            share at splits on each feature, divided by the number of trees, shape (n_rows, n_features).
        """
        values = matrix.astype(np.float32).astype(np.float64)  # scikit-learn compares in single precision
        n_rows, n_features = values.shape
        rows = np.arange(n_rows)[:, None]
        cells = rows * n_features
        moved = np.zeros(n_rows * n_features)
        nodes = np.broadcast_to(self._roots, (n_rows, self._roots.size))
        for _ in range(self._depth):
            feature = self._feature[nodes]
            lower = values[rows, feature] <= self._threshold[nodes]
            following = np.where(lower, self._left[nodes], self._right[nodes])
            change = self._value[following] - self._value[nodes]
            moved += np.bincount((cells + feature).ravel(), weights=change.ravel(), minlength=moved.size)
            nodes = following
        probabilities = self._value[nodes].mean(axis=1)
        return probabilities, moved.reshape(n_rows, n_features) / self._roots.size
