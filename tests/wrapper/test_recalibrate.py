from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from wrapper_parts import ScriptedTextEnv, TableCritic

from ceb_gym import ConfidenceWrapper, Precedents, Query, Trajectory, Verdict
from ceb_gym.evaluation.metrics import expected_calibration_error

STEPS = 10
METHODS = pytest.mark.parametrize("method", ["isotonic", "platt", "beta"])


class ChanceEnv(ScriptedTextEnv):
    """An action spells its chance to be rewarded."""

    def __init__(self) -> None:
        super().__init__(rewards=(0.0,) * STEPS)
        self.luck = random.Random(7)

    def step(self, action: str) -> Any:
        observation, _, *others = super().step(action)
        return observation, float(self.luck.random() < float(action)), *others


class SqueezedCritic(TableCritic):
    """Knows each chance, and says 0.6 + 0.3 of it."""

    name = "squeezed"

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        return [Verdict(0.6 + 0.3 * float(query.action)) for query in queries]


def rewarded(trajectory: Trajectory) -> list[bool]:
    return [(step.reward or 0.0) > 0 for step in trajectory.steps]


def run(env: Any, episodes: int, seed: int = 1) -> tuple[list[float], list[bool]]:
    """Returns the confidences, in order, and whether each step was rewarded."""
    rng = random.Random(seed)
    said, happened = [], []
    for _ in range(episodes):
        env.reset()
        for _ in range(STEPS):
            _, reward, *_, info = env.step(f"{rng.random():.3f}")
            said.append(info["ceb"]["confidence"])
            happened.append(reward > 0)
    return said, happened


@METHODS
def test_a_badly_scaled_critic_is_better_calibrated_on_later_episodes(wrap: Any, method: str) -> None:
    later = slice(20 * STEPS, None)
    errors = {}
    for recalibrate in ("none", method):
        env = wrap(ChanceEnv(), critic=SqueezedCritic(), labeler=rewarded, recalibrate=recalibrate)
        said, happened = run(env, 60)
        errors[recalibrate] = expected_calibration_error(said[later], happened[later])
    assert errors["none"] > 0.2
    assert errors[method] < 0.1


@METHODS
def test_the_raw_score_is_stored_so_that_maps_never_learn_from_mapped_scores(wrap: Any, method: str) -> None:
    env = wrap(ChanceEnv(), critic=SqueezedCritic(), labeler=rewarded, recalibrate=method)
    run(env, 30)
    records = env.bank.records("ChanceEnv")
    mapped = [record for record in records if "raw_confidence" in record.features]
    unmapped = [record for record in records if "raw_confidence" not in record.features]
    assert len(unmapped) >= 50 and len(mapped) > 100
    for record in mapped:
        assert record.features["raw_confidence"] == 0.6 + 0.3 * float(record.action)
    assert all(record.confidence == 0.6 + 0.3 * float(record.action) for record in unmapped)
    assert min(record.confidence or 0.0 for record in mapped) < 0.3
    assert {record.critic for record in records} == {"squeezed"}


def test_a_judgement_tells_the_raw_score(wrap: Any) -> None:
    env = wrap(ChanceEnv(), critic=SqueezedCritic(), labeler=rewarded, recalibrate="beta")
    run(env, 20)
    env.reset()
    verdict = env.assess("0.1").verdict
    assert verdict.usage["raw_confidence"] == 0.6 + 0.3 * 0.1
    assert verdict.confidence is not None and verdict.confidence < 0.5


@METHODS
def test_a_restart_gives_the_same_map(wrap: Any, tmp_path: Path, method: str) -> None:
    bank = str(tmp_path / "bank.db")
    arguments: dict[str, Any] = {"critic": SqueezedCritic(), "bank": bank, "recalibrate": method}
    actions = [f"{place / 10:.1f}" for place in range(11)]
    env = wrap(ChanceEnv(), labeler=rewarded, **arguments)
    run(env, 20)
    env.reset()
    before = [env.confidence(action) for action in actions]
    env.close()
    again = wrap(ChanceEnv(), learn="off", **arguments)
    again.reset()
    assert [again.confidence(action) for action in actions] == before
    assert before != [0.6 + 0.3 * float(action) for action in actions]


def test_another_critics_records_in_the_bank_give_no_map(wrap: Any, tmp_path: Path) -> None:
    bank = str(tmp_path / "bank.db")
    run(wrap(ChanceEnv(), critic="constant:0.9", labeler=rewarded, bank=bank), 20)
    env = wrap(ChanceEnv(), critic=SqueezedCritic(), labeler=rewarded, bank=bank, recalibrate="isotonic")
    env.reset()
    assert env.confidence("0.5") == 0.6 + 0.3 * 0.5


def test_another_scopes_records_give_no_map_unless_they_are_read(wrap: Any, tmp_path: Path) -> None:
    bank = str(tmp_path / "bank.db")
    arguments: dict[str, Any] = {"critic": SqueezedCritic(), "labeler": rewarded, "recalibrate": "isotonic"}
    run(wrap(ChanceEnv(), bank=f"{bank}?scope=ann", **arguments), 20)
    apart = wrap(ChanceEnv(), bank=f"{bank}?scope=bob", **arguments)
    reading = wrap(ChanceEnv(), bank=f"{bank}?scope=bob&read_scopes=ann", **arguments)
    for env in (apart, reading):
        env.reset()
    assert apart.confidence("0.1") == 0.6 + 0.3 * 0.1
    assert reading.confidence("0.1") < 0.5


def test_the_running_episode_is_judged_by_one_map(wrap: Any) -> None:
    env = wrap(
        ChanceEnv(), critic=SqueezedCritic(), labeler=rewarded, recalibrate="isotonic", segment_steps=2
    )
    run(env, 10)
    env.reset()
    first = env.confidence("0.3")
    for _ in range(STEPS - 1):
        assert env.confidence("0.3") == first
        env.step("0.9")


def test_wrappers_that_recalibrate_differently_share_no_engine(wrap: Any, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"critic": "base_rate", "bank": str(tmp_path / "bank.db")}
    plain, same, other = (wrap(recalibrate=method, **arguments) for method in ("none", "none", "platt"))
    for env in (plain, same, other):
        env.reset()
    assert plain._engine is same._engine is not other._engine


def test_recalibration_survives_the_round_trip_of_the_spec() -> None:
    env = ConfidenceWrapper(
        gym.make("CartPole-v1"), critic="neighbors", labeler="return:0.9", recalibrate="beta"
    )
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        again = gym.make(spec)
        assert (again.spec.additional_wrappers[-1].kwargs or {})["recalibrate"] == "beta"
        again.reset(seed=0)
        assert again.step(0)[4]["ceb"]["source"] == "neighbors"
        again.close()
