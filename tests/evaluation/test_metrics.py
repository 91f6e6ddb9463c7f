import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from ceb_gym.errors import ConfigurationError, MetricInputError
from ceb_gym.evaluation.metrics import (
    MetricSummary,
    average_precision,
    brier_parts,
    brier_score,
    brier_skill,
    coverage,
    expected_calibration_error,
    maximum_calibration_error,
    roc_auc,
    summarize,
)
from ceb_gym.evaluation.reliability import reliability_bins

METRICS: list[Callable[..., object]] = [
    average_precision,
    brier_parts,
    brier_score,
    brier_skill,
    expected_calibration_error,
    maximum_calibration_error,
    roc_auc,
]


def bin_of(confidence: float, num_bins: int = 10) -> int:
    counts = [item.count for item in reliability_bins([confidence], [True], num_bins=num_bins)]
    assert len(counts) == num_bins
    return counts.index(1)


@pytest.mark.parametrize("k", range(10))
def test_bin_edge_belongs_to_the_bin_above(k: int) -> None:
    assert bin_of(k / 10) == k
    assert k == 0 or bin_of(float(np.nextafter(k / 10, 0))) == k - 1


@pytest.mark.parametrize("num_bins", [3, 7, 10, 15, 100])
def test_every_edge_of_any_number_of_bins_belongs_to_the_bin_above(num_bins: int) -> None:
    assert [bin_of(k / num_bins, num_bins) for k in range(num_bins)] == list(range(num_bins))


def test_one_falls_into_the_last_bin() -> None:
    assert bin_of(1.0) == 9
    assert expected_calibration_error([0.95, 1.0], [True, False]) == pytest.approx(0.475)
    assert maximum_calibration_error([0.95, 1.0], [True, False]) == pytest.approx(0.475)


def test_calibration_error_of_known_bins() -> None:
    confidence = [0.1, 0.1, 0.1, 0.1, 0.9]
    correct = [True, False, False, False, True]
    assert expected_calibration_error(confidence, correct) == pytest.approx(0.8 * 0.15 + 0.2 * 0.1)
    assert maximum_calibration_error(confidence, correct) == pytest.approx(0.15)


def test_equal_mass_bins_hold_equally_many_steps() -> None:
    confidence = [0.01, 0.02, 0.03, 0.04]
    correct = [False, True, False, True]
    expected = (abs(0.03 - 1) + abs(0.07 - 1)) / 4
    assert expected_calibration_error(confidence, correct, num_bins=2, binning="mass") == pytest.approx(
        expected
    )


def test_equal_confidences_share_a_bin_of_equal_mass_in_any_input_order() -> None:
    confidence = [0.4] * 6 + [0.8] * 2
    correct = [True, True, True, False, False, False, True, True]
    expected = (abs(2.4 - 3) + abs(1.6 - 2)) / 8
    for order in (slice(None), slice(None, None, -1)):
        value = expected_calibration_error(confidence[order], correct[order], num_bins=4, binning="mass")
        assert value == pytest.approx(expected)


def test_more_bins_of_equal_mass_than_steps_put_each_step_in_its_own() -> None:
    assert expected_calibration_error([0.2, 0.7], [True, True], binning="mass") == pytest.approx(0.55)


def test_one_class_only_leaves_ranking_undefined_and_the_rest_defined() -> None:
    for label in (True, False):
        assert roc_auc([0.2, 0.8], [label, label]) is None
        assert brier_skill([0.2, 0.8], [label, label]) is None
        assert brier_score([0.2, 0.8], [label, label]) == pytest.approx(0.34)
        assert expected_calibration_error([0.2, 0.8], [label, label]) == pytest.approx(0.5)
    assert average_precision([0.2, 0.8], [False, False]) is None
    assert average_precision([0.2, 0.8], [True, True]) == 1.0


def test_constant_confidence_ranks_like_chance() -> None:
    assert roc_auc([0.3] * 4, [True, False, False, False]) == 0.5
    assert average_precision([0.3] * 4, [True, False, False, False]) == 0.25


def test_skill_of_the_steps_own_positive_rate_is_zero() -> None:
    assert brier_skill([0.25] * 4, [True, False, False, False]) == pytest.approx(0.0)
    assert brier_skill([1.0, 0.0], [True, False]) == 1.0


def test_brier_parts_of_a_calibrated_estimator_are_all_refinement() -> None:
    calibration, refinement = brier_parts([0.25] * 4, [True, False, False, False])
    assert (calibration, refinement) == (pytest.approx(0.0), pytest.approx(0.1875))


def test_brier_parts_of_constant_gaps_are_all_calibration() -> None:
    calibration, refinement = brier_parts([0.75, 0.75], [True, True])
    assert (calibration, refinement) == (pytest.approx(0.0625), pytest.approx(0.0))


@pytest.mark.parametrize("metric", METRICS)
def test_no_steps_are_refused(metric: Callable[..., object]) -> None:
    with pytest.raises(MetricInputError, match="no steps"):
        metric([], [])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("bad", [-0.01, 1.01, math.nan, math.inf, "0.5", [0.5]])
def test_score_that_is_no_probability_is_refused_with_value_and_position(
    metric: Callable[..., object], bad: object
) -> None:
    with pytest.raises(MetricInputError) as caught:
        metric([0.5, bad], [True, False])
    assert repr(bad) in str(caught.value)
    assert "position 1" in str(caught.value)


@pytest.mark.parametrize("metric", METRICS)
def test_unscored_step_is_refused_by_single_metrics(metric: Callable[..., object]) -> None:
    with pytest.raises(MetricInputError, match="position 1 is unscored"):
        metric([0.5, None], [True, False])


@pytest.mark.parametrize("metric", METRICS)
def test_label_that_is_no_truth_value_is_refused(metric: Callable[..., object]) -> None:
    for bad in (None, 2, 0.5, "True"):
        with pytest.raises(MetricInputError, match="position 0"):
            metric([0.5, 0.5], [bad, False])
    with pytest.raises(MetricInputError, match="2 confidences and 1 labels"):
        metric([0.5, 0.5], [True])


def test_binning_without_meaning_is_refused() -> None:
    for bins in (0, -1, 2.5, True):
        with pytest.raises(ConfigurationError, match="num_bins"):
            expected_calibration_error([0.5], [True], num_bins=bins)
    with pytest.raises(ConfigurationError, match="binning"):
        maximum_calibration_error([0.5], [True], binning="quantile")


def test_numpy_inputs_give_the_same_as_lists() -> None:
    confidence, correct = [0.1, 0.4, 0.8], [False, True, True]
    for metric in METRICS:
        assert metric(np.array(confidence), np.array(correct)) == metric(confidence, correct)


def test_coverage_is_the_share_of_scored_steps() -> None:
    assert coverage([0.5, None, None, 0.1]) == 0.5
    with pytest.raises(MetricInputError):
        coverage([])


def test_summary_leaves_unscored_steps_out_and_counts_them() -> None:
    summary = summarize([0.9, None, 0.2, None], [True, True, False, True], ["a", "a", "b", "c"])
    assert (summary.n_episodes, summary.n_steps, summary.n_scored) == (3, 4, 2)
    assert (summary.coverage, summary.base_rate) == (0.5, 0.75)
    assert summary.brier == pytest.approx(brier_score([0.9, 0.2], [True, False]))
    assert summary.auc == 1.0


def test_summary_agrees_with_the_single_metrics() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.random(200).round(2)
    correct = rng.random(200) < confidence
    summary = summarize(list(confidence), correct, [str(i // 5) for i in range(200)], resamples=10)
    assert summary.ece == expected_calibration_error(confidence, correct)
    assert summary.ece_15 == expected_calibration_error(confidence, correct, num_bins=15)
    assert summary.ece_mass == expected_calibration_error(confidence, correct, binning="mass")
    assert summary.mce == maximum_calibration_error(confidence, correct)
    assert (summary.brier_calibration, summary.brier_refinement) == brier_parts(confidence, correct)
    assert summary.brier_skill == brier_skill(confidence, correct)
    assert summary.auc == roc_auc(confidence, correct)
    assert summary.average_precision == average_precision(confidence, correct)


def test_summary_of_unscored_steps_is_undefined_but_counted() -> None:
    summary = summarize([None, None], [True, False], ["a", "b"])
    assert (summary.n_scored, summary.coverage, summary.base_rate) == (0, 0.0, 0.5)
    assert summary.ece is None and summary.brier is None and summary.auc is None
    assert summary.ci["ece"] is None and summary.ci["coverage"] == (0.0, 0.0)


def test_summary_refuses_no_steps_and_other_lengths() -> None:
    with pytest.raises(MetricInputError, match="no steps"):
        summarize([], [], [])
    with pytest.raises(MetricInputError, match="2 confidences, 2 labels and 1 episode"):
        summarize([0.5, 0.5], [True, False], ["a"])
    with pytest.raises(MetricInputError, match=r"nan at position 2"):
        summarize([None, 0.5, math.nan], [True, False, True], ["a"] * 3)


def test_summary_as_json_has_all_fields_with_null_for_undefined() -> None:
    value = json.loads(json.dumps(summarize([0.5], [True], ["a"]).to_json(), allow_nan=False))
    assert list(value) == [
        "n_episodes", "n_steps", "n_scored", "base_rate", "ece", "ece_15", "ece_mass", "mce", "brier",
        "brier_calibration", "brier_refinement", "brier_skill", "auc", "average_precision", "coverage", "ci",
    ]  # fmt: skip
    assert (value["auc"], value["brier_skill"], value["ci"]["auc"]) == (None, None, None)
    assert value["brier"] == 0.25


def test_summary_of_no_steps_is_undefined_throughout() -> None:
    value = MetricSummary.of_no_steps().to_json()
    assert {key for key, item in value.items() if item is not None} == {
        "n_episodes",
        "n_steps",
        "n_scored",
        "ci",
    }
