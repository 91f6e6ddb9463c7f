import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from ceb_gym.evaluation.metrics import (
    average_precision,
    brier_parts,
    brier_score,
    brier_skill,
    expected_calibration_error,
    maximum_calibration_error,
    roc_auc,
)

TOLERANCE = 1e-9
# Values are tested here, not speed: on a busy machine one example of 200 ms would be a failure.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
EDGES = st.integers(0, 60).map(lambda k: k / 60)
SCORES = st.one_of(st.floats(0, 1), EDGES, st.integers(0, 10).map(lambda k: k / 10))
STEPS = st.lists(st.tuples(SCORES, st.booleans()), min_size=1, max_size=40)


def split(steps: list[tuple[float, bool]]) -> tuple[list[float], list[bool]]:
    return [score for score, _ in steps], [label for _, label in steps]


def naive_bin(score: float, num_bins: int) -> int:
    return max(k for k in range(num_bins) if k / num_bins <= score)


def naive_groups(steps: list[tuple[float, bool]], num_bins: int) -> list[list[tuple[float, bool]]]:
    groups: dict[int, list[tuple[float, bool]]] = {}
    for step in steps:
        groups.setdefault(naive_bin(step[0], num_bins), []).append(step)
    return list(groups.values())


def naive_mass_groups(steps: list[tuple[float, bool]], num_bins: int) -> list[list[tuple[float, bool]]]:
    scores = sorted(score for score, _ in steps)
    edges = [scores[len(scores) * k // num_bins] for k in range(1, num_bins)]
    groups: dict[int, list[tuple[float, bool]]] = {}
    for step in steps:
        groups.setdefault(sum(edge <= step[0] for edge in edges), []).append(step)
    return list(groups.values())


def naive_gap(group: list[tuple[float, bool]]) -> float:
    return abs(math.fsum(score - label for score, label in group)) / len(group)


@untimed
@given(STEPS, st.integers(1, 20))
def test_calibration_errors_equal_their_definition(steps: list[tuple[float, bool]], num_bins: int) -> None:
    confidence, correct = split(steps)
    for binning, groups in (
        ("width", naive_groups(steps, num_bins)),
        ("mass", naive_mass_groups(steps, num_bins)),
    ):
        expected = sum(len(group) / len(steps) * naive_gap(group) for group in groups)
        largest = max(naive_gap(group) for group in groups)
        options = {"num_bins": num_bins, "binning": binning}
        assert expected_calibration_error(confidence, correct, **options) == pytest.approx(
            expected, abs=TOLERANCE
        )
        assert maximum_calibration_error(confidence, correct, **options) == pytest.approx(
            largest, abs=TOLERANCE
        )


@untimed
@given(STEPS)
def test_brier_score_equals_scikit_learn(steps: list[tuple[float, bool]]) -> None:
    confidence, correct = split(steps)
    theirs = sklearn_metrics.brier_score_loss(correct, confidence, pos_label=True)
    assert brier_score(confidence, correct) == pytest.approx(theirs, abs=TOLERANCE)


@untimed
@given(STEPS)
def test_ranking_metrics_equal_scikit_learn(steps: list[tuple[float, bool]]) -> None:
    confidence, correct = split(steps)
    assume(0 < sum(correct) < len(correct))
    # scikit-learn joins thresholds that differ by less than its own rounding, so scores are kept apart.
    assume(np.diff(np.unique(confidence)).min(initial=1.0) > 1e-9)
    assert roc_auc(confidence, correct) == pytest.approx(
        sklearn_metrics.roc_auc_score(correct, confidence), abs=TOLERANCE
    )
    assert average_precision(confidence, correct) == pytest.approx(
        sklearn_metrics.average_precision_score(correct, confidence), abs=TOLERANCE
    )


@untimed
@given(STEPS)
def test_auc_equals_the_share_of_won_pairs(steps: list[tuple[float, bool]]) -> None:
    confidence, correct = split(steps)
    positive = [score for score, label in steps if label]
    negative = [score for score, label in steps if not label]
    assume(positive and negative)
    wins = sum((high > low) + 0.5 * (high == low) for high in positive for low in negative)
    expected = wins / len(positive) / len(negative)
    assert roc_auc(confidence, correct) == pytest.approx(expected, abs=TOLERANCE)


@untimed
@given(STEPS, st.one_of(st.none(), st.integers(1, 20)))
def test_brier_parts_are_not_negative_and_add_up(
    steps: list[tuple[float, bool]], num_bins: int | None
) -> None:
    confidence, correct = split(steps)
    parts = brier_parts(confidence, correct, num_bins=num_bins)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(brier_score(confidence, correct), abs=1e-12)


@untimed
@given(STEPS)
def test_brier_parts_over_distinct_confidences_are_murphys(steps: list[tuple[float, bool]]) -> None:
    confidence, correct = split(steps)
    reliability = remainder = 0.0
    for value in set(confidence):
        labels = [label for score, label in steps if score == value]
        rate = sum(labels) / len(labels)
        reliability += len(labels) * (value - rate) ** 2 / len(steps)
        remainder += len(labels) * rate * (1 - rate) / len(steps)
    parts = brier_parts(confidence, correct, num_bins=None)
    assert parts == (pytest.approx(reliability, abs=TOLERANCE), pytest.approx(remainder, abs=TOLERANCE))


@untimed
@given(STEPS)
def test_skill_compares_with_the_constant_base_rate(steps: list[tuple[float, bool]]) -> None:
    confidence, correct = split(steps)
    assume(0 < sum(correct) < len(correct))
    rate = sum(correct) / len(correct)
    expected = 1 - brier_score(confidence, correct) / brier_score([rate] * len(correct), correct)
    assert brier_skill(confidence, correct) == pytest.approx(expected, abs=TOLERANCE)


@untimed
@given(STEPS, st.randoms())
def test_input_order_does_not_matter(steps: list[tuple[float, bool]], random: object) -> None:
    shuffled = list(steps)
    random.shuffle(shuffled)
    for metric in (expected_calibration_error, brier_score, roc_auc, average_precision):
        first, second = metric(*split(steps)), metric(*split(shuffled))
        assert first == (None if second is None else pytest.approx(second, abs=TOLERANCE))
