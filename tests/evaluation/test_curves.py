from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ceb_gym.errors import ConfigurationError, MetricInputError
from ceb_gym.evaluation.bootstrap import PairedDifference
from ceb_gym.evaluation.curves import LEAST_WINDOW, MOST_POINTS, Curve, curve_over_stream, save_curve
from ceb_gym.evaluation.gaps import gap_between, verdict_of
from ceb_gym.evaluation.metrics import brier_skill, expected_calibration_error

N_EPISODES = 137
RNG = np.random.default_rng(0)
EPISODES = np.sort(RNG.integers(0, N_EPISODES, 700))
CONFIDENCE = RNG.random(700)
CORRECT = RNG.random(700) < CONFIDENCE


def curve_of(**confidence: list[float | None]) -> Curve:
    return curve_over_stream(confidence, CORRECT, EPISODES.tolist(), N_EPISODES)


@pytest.fixture(scope="module")
def curve() -> Curve:
    return curve_of(critic=CONFIDENCE.tolist(), counts=[0.5] * 700)


def test_cumulative_values_equal_the_metrics_of_all_steps_so_far(curve: Curve) -> None:
    cumulative = curve.values["critic"]["cumulative"]
    for place, end in enumerate(curve.episodes):
        rows = end > EPISODES
        assert cumulative["ece"][place] == pytest.approx(
            expected_calibration_error(CONFIDENCE[rows], CORRECT[rows])
        )
        expected = brier_skill(CONFIDENCE[rows], CORRECT[rows])
        assert cumulative["brier_skill"][place] == (
            None if expected is None else pytest.approx(expected, abs=1e-9)
        )


def test_windowed_values_cover_the_last_episodes_only_and_wait_for_a_whole_window(curve: Curve) -> None:
    assert curve.window == 14
    for place, end in enumerate(curve.episodes):
        value = curve.values["critic"]["windowed"]["ece"][place]
        rows = (end - curve.window <= EPISODES) & (end > EPISODES)
        if end < curve.window:
            assert value is None
        else:
            assert value == pytest.approx(expected_calibration_error(CONFIDENCE[rows], CORRECT[rows]))


def test_the_last_point_covers_the_whole_run_and_points_are_few(curve: Curve) -> None:
    assert curve.episodes[-1] == N_EPISODES and len(curve.episodes) == MOST_POINTS
    assert list(curve.episodes) == sorted(set(curve.episodes))


def test_unscored_steps_are_left_out_and_an_unscored_critic_has_no_value() -> None:
    half: list[float | None] = [value if place % 2 else None for place, value in enumerate(CONFIDENCE)]
    found = curve_of(half=half, none=[None] * 700)
    assert found.values["half"]["cumulative"]["ece"][-1] == pytest.approx(
        expected_calibration_error(CONFIDENCE[1::2], CORRECT[1::2])
    )
    assert set(found.values["none"]["cumulative"]["ece"]) == {None}


def test_skill_is_undefined_where_there_is_one_class_only() -> None:
    found = curve_over_stream({"critic": [0.2, 0.9]}, [True, True], [0, 1], 2)
    assert found.values["critic"]["cumulative"]["brier_skill"] == (None, None)
    assert found.window == LEAST_WINDOW


def test_a_run_of_one_episode_has_one_point() -> None:
    found = curve_over_stream({"critic": [0.2]}, [False], [0], 1)
    assert found.episodes == (1,) and found.values["critic"]["cumulative"]["ece"] == (pytest.approx(0.2),)


@pytest.mark.parametrize(
    ("confidence", "episodes", "n_episodes"), [([0.5], [0, 1], 2), ([0.5, 0.5], [0, 2], 2), ([], [], 2)]
)
def test_input_that_does_not_fit_is_refused(
    confidence: list[float | None], episodes: list[int], n_episodes: int
) -> None:
    with pytest.raises(MetricInputError):
        curve_over_stream({"critic": confidence}, [True] * len(episodes), episodes, n_episodes)


def test_the_figure_is_the_same_bytes_for_the_same_input(curve: Curve, tmp_path: Path) -> None:
    images = []
    for name in ("a.png", "b.png"):
        save_curve(tmp_path / name, curve, title="cost $5 or $6", names={"critic": "_mine $x", "counts": "c"})
        images.append((tmp_path / name).read_bytes())
    assert images[0] == images[1] and images[0].startswith(b"\x89PNG")


def test_a_figure_without_matplotlib_names_the_extra(
    curve: Curve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"ceb-gym\[plots\]"):
        save_curve(tmp_path / "a.png", curve, title="t", names={"critic": "critic"})


def test_gap_has_intervals_from_whole_episodes_and_none_without_resamples() -> None:
    ids = [f"{number}" for number in EPISODES]
    gap = gap_between(CONFIDENCE.tolist(), [0.5] * 700, CORRECT.tolist(), ids, resamples=200, seed=0)
    assert gap is not None and gap["auc"].ci is not None and gap["auc"].difference is not None
    assert gap["auc"].ci[0] < gap["auc"].difference < gap["auc"].ci[1]
    assert verdict_of("auc", gap["auc"]) == verdict_of("brier", gap["brier"]) == "better"
    bare = gap_between(CONFIDENCE.tolist(), [0.5] * 700, CORRECT.tolist(), ids, resamples=0, seed=0)
    assert bare is not None and bare["auc"] == PairedDifference(gap["auc"].difference, None)


def test_gap_is_none_where_no_step_has_both_scores() -> None:
    assert gap_between([None, 0.5], [0.5, None], [True, False], ["a", "b"], resamples=9, seed=0) is None


@pytest.mark.parametrize(
    ("name", "interval", "word"),
    [
        ("brier", (0.01, 0.02), "worse"),
        ("auc", (0.01, 0.02), "better"),
        ("ece", (-0.02, -0.01), "better"),
        ("brier_skill", (-0.02, -0.01), "worse"),
        ("auc", (-0.01, 0.02), "no difference shown"),
        ("auc", (0.0, 0.0), "no difference shown"),
        ("auc", None, "-"),
    ],
)
def test_only_an_interval_without_zero_tells_who_is_better(
    name: str, interval: tuple[float, float] | None, word: str
) -> None:
    assert verdict_of(name, PairedDifference(0.01, interval)) == word
