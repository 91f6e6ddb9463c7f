from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

from ceb_gym.critics.forest import CompactForest


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
@pytest.mark.parametrize("n_features", [1, 7])
def test_probabilities_equal_those_of_scikit_learn(kind: Any, n_features: int) -> None:
    rng = np.random.default_rng(n_features)
    matrix = rng.normal(size=(300, n_features)) * 10.0 ** rng.integers(-3, 6, size=n_features)
    labels = (matrix[:, 0] + rng.normal(size=300) > 0).astype(np.int8)
    forest = kind(30, min_samples_leaf=2, random_state=0).fit(matrix, labels)
    compact = CompactForest(forest)
    rows = np.vstack([matrix[:50], rng.normal(size=(50, n_features)) * 1e4])
    ours = compact.explain(rows)[0]
    np.testing.assert_allclose(ours, forest.predict_proba(rows)[:, 1], atol=1e-9)


def test_what_the_features_moved_adds_up_to_the_probability() -> None:
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(200, 5))
    labels = (matrix[:, 2] > 0).astype(np.int8)
    forest = ExtraTreesClassifier(20, random_state=0).fit(matrix, labels)
    root = np.mean([tree.tree_.value[0, 0, 1] / tree.tree_.value[0, 0].sum() for tree in forest.estimators_])
    probabilities, moved = CompactForest(forest).explain(matrix[:5])
    np.testing.assert_allclose(root + moved.sum(axis=1), probabilities, atol=1e-9)
    assert (np.abs(moved).argmax(axis=1) == 2).all()
