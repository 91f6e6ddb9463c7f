from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ceb_gym.critics.precedent import PrecedentCritic
from ceb_gym.evaluation.feature_weights import (
    MIN_RECORDS,
    REPEATS,
    FeatureWeights,
    feature_weights,
)
from ceb_gym.features import FEATURES_VERSION, VERSION_KEY, feature_groups
from ceb_gym.types import Record

NAMES = [name for names in feature_groups().values() for name in names]


def records_of(episodes: int, *, telling: str = "last_error", steps: int = 4) -> list[Record]:
    """Episodes whose later steps are productive where one feature says so; first steps always are."""
    rng = np.random.default_rng(0)
    records = []
    for episode in range(episodes):
        for step in range(steps):
            features = dict(zip(NAMES, rng.random(len(NAMES)).tolist(), strict=True))
            features |= {VERSION_KEY: float(FEATURES_VERSION), "step_index": float(step)}
            features[telling] = float(rng.random() < 0.5)
            records.append(
                Record(
                    record_id=f"e{episode}:{step}:0",
                    scope="s",
                    episode_id=f"e{episode}",
                    step_index=step,
                    task="t",
                    state="",
                    action="a",
                    outcome="",
                    label=step == 0 or features[telling] > 0,
                    vote_share=1.0,
                    votes=1,
                    confidence=0.5,
                    agrees=True,
                    repeated=False,
                    critic="precedent",
                    labeler="x",
                    created_at=0.0,
                    features=features,
                )
            )
    return records


def weights_of(
    records: list[Record], critic: PrecedentCritic | None = None, *, seed: int = 0
) -> FeatureWeights | str:
    runs = [record.episode_id for record in records]
    return feature_weights(critic or PrecedentCritic(), records, runs, seed=seed)


@pytest.fixture(scope="module")
def weights() -> FeatureWeights:
    found = weights_of(records_of(60))
    assert isinstance(found, FeatureWeights)
    return found


def test_the_telling_feature_and_its_group_are_the_strongest(weights: FeatureWeights) -> None:
    assert weights.strongest(1) == ["last_error"]
    assert max(weights.groups, key=lambda group: weights.groups[group]["all"].mean) == "outcomes"
    told = weights.features["last_error"]
    assert told["all"].mean > 10 * abs(weights.features["empties"]["all"].mean)
    assert told["later_steps"].mean > told["all"].mean > 0 and told["all"].deviation > 0


def test_each_feature_and_each_group_has_a_weight(weights: FeatureWeights) -> None:
    assert set(weights.features) == set(NAMES) and set(weights.groups) == set(feature_groups())
    assert (weights.n_learned, weights.n_judged, weights.n_later) == (180, 60, 45)
    assert weights.to_json()["repeats"] == REPEATS


def test_first_steps_and_later_ones_are_mixed_up_apart() -> None:
    """A feature that only tells first steps from later ones loses nothing, since each kind has one value."""
    records = [
        replace(record, features={**record.features, "empties": float(record.step_index == 0)})
        for record in records_of(60)
    ]
    found = weights_of(records)
    assert isinstance(found, FeatureWeights)
    assert found.features["empties"]["all"].mean == 0.0 == found.features["empties"]["all"].deviation


def test_precedents_weigh_nothing_where_the_critic_looks_at_none(weights: FeatureWeights) -> None:
    found = weights_of(records_of(60, telling="near_difference"), PrecedentCritic(precedents=False))
    assert isinstance(found, FeatureWeights) and not found.uses_precedents
    assert {found.features[name]["all"].mean for name in feature_groups()["precedents"]} == {0.0}
    used = weights_of(records_of(60, telling="near_difference"), PrecedentCritic(precedents=True))
    assert isinstance(used, FeatureWeights) and used.uses_precedents
    assert used.strongest(1) == ["near_difference"]


def test_same_seed_gives_the_same_weights_and_another_seed_others(weights: FeatureWeights) -> None:
    assert weights_of(records_of(60)) == weights
    assert weights_of(records_of(60), seed=1) != weights


def test_the_critic_never_learns_from_what_it_is_tried_on() -> None:
    """In the newest quarter another feature tells: the critic cannot have seen that."""
    older, newer = records_of(60)[:180], records_of(60, telling="empties")[180:]
    found = weights_of(older + newer)
    assert isinstance(found, FeatureWeights)
    assert found.features["empties"]["all"].mean < 0.01


def test_a_run_of_several_episodes_is_never_torn_in_two() -> None:
    """Episodes 0 and 59 are parts of one run, which ends last: both are of the newest quarter."""
    records = records_of(60)
    runs = ["both" if record.episode_id in ("e0", "e59") else record.episode_id for record in records]
    found = feature_weights(PrecedentCritic(), records, runs, seed=0)
    assert isinstance(found, FeatureWeights)
    assert (found.n_learned, found.n_judged) == (4 * 44, 4 * 16)


def test_too_few_records_and_one_class_are_said_instead() -> None:
    few = weights_of(records_of(9))
    assert few == f"They need at least {MIN_RECORDS} records of this run in the bank; there are 36."
    one_class = weights_of([replace(record, label=True) for record in records_of(20)])
    assert isinstance(one_class, str) and "one class" in one_class


def test_episodes_of_one_step_have_no_weights_for_later_steps() -> None:
    records = [
        replace(record, label=record.features["last_error"] > 0) for record in records_of(120, steps=1)
    ]
    found = weights_of(records)
    assert isinstance(found, FeatureWeights) and found.n_later == 0
    assert set(found.features["last_error"]) == {"all"} and found.strongest(1) == ["last_error"]
