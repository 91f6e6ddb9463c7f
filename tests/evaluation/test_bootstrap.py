import numpy as np
import pytest

from ceb_gym.errors import ConfigurationError, MetricInputError
from ceb_gym.evaluation import bootstrap
from ceb_gym.evaluation.bootstrap import bootstrap_intervals, paired_differences
from ceb_gym.evaluation.metrics import summarize

RNG = np.random.default_rng(5)
N_EPISODES, N_STEPS = 40, 5
EPISODES = [f"e{i}" for i in range(N_EPISODES) for _ in range(N_STEPS)]
CONFIDENCE = RNG.random(N_EPISODES * N_STEPS).round(2).tolist()
CORRECT = (RNG.random(N_EPISODES * N_STEPS) < CONFIDENCE).tolist()


def naive_intervals(seed: int, resamples: int) -> dict[str, tuple[float, float]]:
    """Draws episodes one by one and computes each metric anew from the copied steps."""
    rng = np.random.default_rng(seed)
    values: dict[str, list[float]] = {}
    for _ in range(resamples):
        draws = rng.multinomial(N_EPISODES, np.full(N_EPISODES, 1 / N_EPISODES))
        rows = [row for row in range(len(EPISODES)) for _ in range(draws[row // N_STEPS])]
        part = summarize(
            [CONFIDENCE[r] for r in rows], [CORRECT[r] for r in rows], [""] * len(rows), resamples=0
        )
        for name, value in part.to_json().items():
            if isinstance(value, float):
                values.setdefault(name, []).append(value)
    return {name: tuple(np.quantile(items, [0.025, 0.975])) for name, items in values.items()}


def test_intervals_equal_resampling_whole_episodes_one_by_one() -> None:
    intervals = bootstrap_intervals(CONFIDENCE, CORRECT, EPISODES, resamples=60, seed=3)
    expected = naive_intervals(seed=3, resamples=60)
    assert set(intervals) == set(expected)
    for name, pair in expected.items():
        assert intervals[name] == pytest.approx(pair, abs=1e-9), name


def test_same_seed_gives_the_same_intervals_and_another_seed_others() -> None:
    one, same, other = (bootstrap_intervals(CONFIDENCE, CORRECT, EPISODES, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one["auc"] != other["auc"]


def test_resamples_split_over_memory_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bootstrap_intervals(CONFIDENCE, CORRECT, EPISODES, resamples=50)
    monkeypatch.setattr(bootstrap, "_CELLS_AT_ONCE", 7 * len(EPISODES))
    parts = bootstrap_intervals(CONFIDENCE, CORRECT, EPISODES, resamples=50)
    assert parts == {name: pytest.approx(pair) for name, pair in whole.items()}


def test_interval_holds_the_estimate_and_widens_with_the_level() -> None:
    point = summarize(CONFIDENCE, CORRECT, EPISODES, resamples=0)
    narrow = bootstrap_intervals(CONFIDENCE, CORRECT, EPISODES, level=0.5)["brier"]
    wide = bootstrap_intervals(CONFIDENCE, CORRECT, EPISODES, level=0.95)["brier"]
    assert wide[0] < narrow[0] < point.brier < narrow[1] < wide[1]


def test_identical_steps_within_episodes_do_not_narrow_the_interval() -> None:
    episodes = [str(i) for i in range(30)]
    confidence, correct = CONFIDENCE[:30], CORRECT[:30]
    once = bootstrap_intervals(confidence, correct, episodes)["brier"]
    tenfold = bootstrap_intervals(confidence * 10, correct * 10, episodes * 10)["brier"]
    assert tenfold == pytest.approx(once)


def test_coverage_interval_counts_unscored_steps() -> None:
    confidence = [None if episode < "e2" else 0.5 for episode in EPISODES]
    low, high = bootstrap_intervals(confidence, CORRECT, EPISODES)["coverage"]
    assert 0 < low < sum(score is not None for score in confidence) / len(EPISODES) < high < 1


def test_undefined_metrics_have_no_interval() -> None:
    intervals = bootstrap_intervals([0.2, 0.4], [True, True], ["a", "b"])
    assert intervals["auc"] is None and intervals["brier_skill"] is None
    assert intervals["brier"] is not None


def test_metric_that_most_resamples_leave_undefined_has_no_interval() -> None:
    # Of three episodes drawn with replacement, the first two are both there in 44 % of the resamples.
    summary = summarize([0.6, 0.5, None], [True, False, True], ["a", "b", "c"])
    assert summary.auc == 1.0
    assert summary.ci["auc"] is None
    # One positive episode among fifty is there in 64 %.
    rare = bootstrap_intervals([0.5] * 50, [i == 0 for i in range(50)], [str(i) for i in range(50)])
    assert rare["auc"] == (0.5, 0.5)


def test_one_episode_has_no_interval() -> None:
    intervals = bootstrap_intervals([0.2, 0.4], [True, False], ["a", "a"])
    assert set(intervals.values()) == {None}


def test_paired_difference_of_an_estimator_with_itself_is_nothing() -> None:
    for item in paired_differences(CONFIDENCE, CONFIDENCE, CORRECT, EPISODES, resamples=20).values():
        assert (item.difference, item.ci) == (0.0, (0.0, 0.0))


def test_paired_differences_use_the_steps_that_both_scored() -> None:
    first = [None if row % 3 == 0 else score for row, score in enumerate(CONFIDENCE)]
    second = [None if row % 4 == 0 else 0.5 for row in range(len(CONFIDENCE))]
    rows = [row for row in range(len(CONFIDENCE)) if row % 3 and row % 4]
    labels, episodes = [CORRECT[r] for r in rows], [EPISODES[r] for r in rows]
    one = summarize([first[r] for r in rows], labels, episodes, resamples=0)
    other = summarize([second[r] for r in rows], labels, episodes, resamples=0)
    pairs = paired_differences(first, second, CORRECT, EPISODES, resamples=200)
    assert pairs["brier"].difference == pytest.approx(one.brier - other.brier)
    assert pairs["auc"].difference == pytest.approx(one.auc - other.auc)
    assert pairs["brier"].ci[0] < pairs["brier"].difference < pairs["brier"].ci[1]


def test_pairing_gives_a_narrower_interval_than_two_separate_ones() -> None:
    shifted = [min(1.0, score + 0.05) for score in CONFIDENCE]
    low, high = paired_differences(shifted, CONFIDENCE, CORRECT, EPISODES)["brier"].ci
    alone = bootstrap_intervals(CONFIDENCE, CORRECT, EPISODES)["brier"]
    assert high - low < (alone[1] - alone[0]) / 2


def test_inputs_without_meaning_are_refused() -> None:
    with pytest.raises(MetricInputError, match="2 confidences and 1 episode ids"):
        bootstrap_intervals([0.5, 0.5], [True, False], ["a"])
    with pytest.raises(ConfigurationError, match="resamples must be at least 1, got 0"):
        bootstrap_intervals([0.5], [True], ["a"], resamples=0)
    with pytest.raises(ConfigurationError, match="level must lie between 0 and 1, got 95"):
        bootstrap_intervals([0.5, 0.5], [True, False], ["a", "b"], level=95)
    with pytest.raises(MetricInputError, match="No step is scored by both"):
        paired_differences([0.5, None], [None, 0.5], [True, False], ["a", "b"])
    with pytest.raises(MetricInputError, match="2 and 1 confidences"):
        paired_differences([0.5, 0.5], [0.5], [True, False], ["a", "b"])
