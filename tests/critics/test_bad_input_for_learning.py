"""The `precedent` critic behind the wrapper, learning from a real bank that holds what it should not."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from ceb_envs.spaces import UnicodeText
from ceb_gym import ConfidenceWrapper
from ceb_gym.bank.store import SqlBank
from ceb_gym.critics.precedent import PrecedentCritic
from ceb_gym.errors import CriticError
from ceb_gym.features import FEATURES_VERSION, VERSION_KEY, is_repeated, query_features
from ceb_gym.testing.samples import bank_episode, make_step, make_trajectory
from ceb_gym.types import HistoryItem, Precedents, Query, Step, StepLabel

EPISODES = 60
FIRST, AGAIN, OTHER = "find .", "find .", "grep -r word src"
ChangeFeatures = Callable[[dict[str, float]], Mapping[str, float]]


class Shell(gym.Env[str, str]):
    """Answers "fine" to everything, for two steps."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "env_id": "shell"}  # type: ignore[misc]

    def __init__(self) -> None:
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return "s", {"task": "find the file"}

    def step(self, action: str) -> Any:
        self._steps += 1
        return "fine", 0.0, self._steps == 2, False, {}


def judged_step(index: int, action: str, earlier: Sequence[str], change: ChangeFeatures) -> Step:
    history = tuple(HistoryItem("s", before, "fine", True, None) for before in earlier)
    repeated = is_repeated(action, earlier)
    query = Query("shell", "shell", 0, "now", "find the file", "s", action, history, repeated, index)
    features = change(query_features(query, Precedents(), "precedent"))
    texts = {"state": "s", "proposed": action, "action": action, "outcome": "fine"}
    return make_step(index, **texts, repeated=repeated, features=features, critic="precedent")


def fill(
    path: Path,
    episodes: int = EPISODES,
    change: ChangeFeatures = dict,
    label: Callable[[int, bool], bool] = lambda number, again: not again,
) -> Path:
    """A bank of two-step episodes, every second of which repeats its first action.

    Args:
        path: Of the new bank.
        episodes: How many.
        change: From the features of the current version to those that are stored.
        label: Of a second step, by the number of its episode and whether it repeats; first steps are
            productive.
    """
    with closing(SqlBank(f"sqlite:///{path}")) as bank:
        for number in range(episodes):
            again = number % 2 == 0
            steps = [
                judged_step(0, FIRST, [], change),
                judged_step(1, AGAIN if again else OTHER, [FIRST], change),
            ]
            labels = [StepLabel(0, True, 1.0), StepLabel(1, label(number, again), 1.0)]
            bank_episode(bank, make_trajectory(f"e{number}", steps, scope="shell", env_id="shell"), labels)
    return path


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Callable[..., tuple[float, float]]]:
    """Confidences in repeating the first action and in another one, by a bank."""
    opened: list[ConfidenceWrapper[Any, Any]] = []

    def by(path: Path, critic: Any = "precedent") -> tuple[float, float]:
        env = ConfidenceWrapper(Shell(), critic, f"{path}?scope=shell", learn="off")
        opened.append(env)
        env.reset()
        env.step(FIRST)
        again, other = env.confidence(AGAIN), env.confidence(OTHER)
        assert again is not None and other is not None
        assert 0 < again < 1 and 0 < other < 1
        return again, other

    yield by
    for env in opened:
        env.close()


def rewrite_features(path: Path, features: Callable[[dict[str, Any]], str]) -> None:
    """Writes over the stored features, past all checks of the bank."""
    with closing(sqlite3.connect(path)) as raw, raw:
        rows = raw.execute("SELECT sequence, features FROM record").fetchall()
        raw.executemany(
            "UPDATE record SET features = ? WHERE sequence = ?",
            [(features(json.loads(stored)), sequence) for sequence, stored in rows],
        )


def test_a_sound_bank_teaches_that_repeating_does_not_help(judge: Any, tmp_path: Path) -> None:
    again, other = judge(fill(tmp_path / "bank.db"))
    assert again < 0.25 and other > 0.75


@pytest.mark.parametrize("label", [True, False])
def test_later_steps_of_one_class_only_get_its_smoothed_rate(judge: Any, tmp_path: Path, label: bool) -> None:
    for confidence in judge(fill(tmp_path / "bank.db", label=lambda number, again: label)):
        assert confidence == pytest.approx(0.99 if label else 0.01, abs=0.01)


def test_a_bank_of_a_newer_feature_version_is_learned_from_by_its_text(judge: Any, tmp_path: Path) -> None:
    newer = fill(
        tmp_path / "bank.db", change=lambda features: {VERSION_KEY: FEATURES_VERSION + 1.0, "new_one": 3.0}
    )
    again, other = judge(newer)
    assert again < 0.25 and other > 0.75


def test_features_of_two_versions_in_one_bank_teach_the_same(judge: Any, tmp_path: Path) -> None:
    versions = iter([FEATURES_VERSION, FEATURES_VERSION - 1, FEATURES_VERSION + 1] * EPISODES)

    def mixed(features: dict[str, float]) -> dict[str, float]:
        version = next(versions)
        return features if version == FEATURES_VERSION else {VERSION_KEY: float(version)}

    again, other = judge(fill(tmp_path / "bank.db", change=mixed))
    assert again < 0.25 and other > 0.75


def test_features_of_another_critic_alone_are_no_features_of_ours(judge: Any, tmp_path: Path) -> None:
    again, other = judge(fill(tmp_path / "bank.db", change=lambda features: {"p_true": 0.3}))
    assert again < 0.25 and other > 0.75


def test_unknown_names_beside_ours_change_nothing(judge: Any, tmp_path: Path) -> None:
    sound = judge(fill(tmp_path / "sound.db"))
    odd = {"": 1.0, "x" * 1_000: 2.0, "中\n{}": -3.0, "huge": 1e308, "scorer_score": 0.9}
    assert judge(fill(tmp_path / "odd.db", change=lambda features: {**features, **odd})) == sound


def test_a_missing_name_counts_as_0_and_the_others_still_teach(judge: Any, tmp_path: Path) -> None:
    left_out = ("action_length", "last_error", "near_productive")

    def fewer(features: dict[str, float]) -> dict[str, float]:
        return {name: value for name, value in features.items() if name not in left_out}

    again, other = judge(fill(tmp_path / "bank.db", change=fewer))
    assert again < 0.25 and other > 0.75


def test_a_version_without_any_feature_leaves_the_rate(judge: Any, tmp_path: Path) -> None:
    path = fill(tmp_path / "bank.db", change=lambda features: {VERSION_KEY: float(FEATURES_VERSION)})
    assert judge(path) == pytest.approx((0.5, 0.5), abs=0.1)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e30", "-1e-320", "true", "null"])
def test_a_stored_feature_that_is_no_number_does_not_stop_learning(
    judge: Any, tmp_path: Path, number: str
) -> None:
    path = fill(tmp_path / "bank.db")
    rewrite_features(path, lambda stored: json.dumps({**stored, "action_length": "?"}).replace('"?"', number))
    again, other = judge(path)
    assert again < 0.25 and other > 0.75


@pytest.mark.parametrize("version", ["NaN", "null", '"2"', "2.5"])
def test_a_version_that_is_none_means_learning_from_text(judge: Any, tmp_path: Path, version: str) -> None:
    path = fill(tmp_path / "bank.db")
    rewrite_features(path, lambda stored: f'{{"{VERSION_KEY}": {version}, "exact_repeat": NaN}}')
    again, other = judge(path)
    assert again < 0.25 and other > 0.75


@pytest.mark.parametrize("value", ['"abc"', "[1]", "{}"])
def test_a_stored_feature_of_another_type_is_an_error_that_a_fallback_can_take(
    tmp_path: Path, value: str
) -> None:
    path = fill(tmp_path / "bank.db", 12)
    rewrite_features(path, lambda stored: json.dumps({**stored, "errors": "?"}).replace('"?"', value))
    env = ConfidenceWrapper(Shell(), "precedent", f"{path}?scope=shell", learn="off")
    env.reset()
    with pytest.raises(CriticError, match=r"precedent raised .* learned from 24 records"):
        env.assess(FIRST)
    env.close()
    env = ConfidenceWrapper(
        Shell(), "precedent", f"{path}?scope=shell", learn="off", on_critic_error="base_rate"
    )
    env.reset()
    assert env.assess(FIRST).verdict.source == "base_rate"
    env.close()


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_huge_finite_feature_does_not_stop_learning(judge: Any, tmp_path: Path) -> None:
    again, other = judge(fill(tmp_path / "bank.db", change=lambda features: {**features, "errors": 1e308}))
    assert again < 0.25 and other > 0.75


def test_three_records_give_rates_and_then_every_further_episode_counts(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    with closing(SqlBank(f"sqlite:///{path}")) as bank:
        for number, actions in enumerate(([FIRST, OTHER], [FIRST])):
            steps = [judged_step(i, action, actions[:i], dict) for i, action in enumerate(actions)]
            labels = [StepLabel(step.index, step.index == 0, 1.0) for step in steps]
            bank_episode(bank, make_trajectory(f"e{number}", steps, scope="shell", env_id="shell"), labels)
        assert len(bank.records("shell")) == 3
    env = ConfidenceWrapper(Shell(), "precedent", f"{path}?scope=shell", lambda t: [False] * len(t.steps))
    seen = []
    for _ in range(4):
        env.reset()
        for action in (FIRST, OTHER):
            seen.append(env.step(action)[4]["ceb"]["confidence"])
    env.close()
    assert seen[:2] == pytest.approx([2.5 / 3, 0.5 / 2])
    assert seen[0::2] == pytest.approx([2.5 / (3 + number) for number in range(4)])


def test_contradictory_labels_of_one_step_give_their_share(judge: Any, tmp_path: Path) -> None:
    mostly = fill(tmp_path / "mostly.db", label=lambda number, again: number % 4 != 0 if again else False)
    again, other = judge(mostly)
    assert again == pytest.approx(0.5, abs=0.15)
    assert other < 0.15


@pytest.mark.parametrize(
    "action",
    ["x" * 10**6, " ".join(f"w{n}" for n in range(150_000)), "/a/b.c " * 142_858, "'\"|>" * 250_000],
    ids=["one word", "many words", "many paths", "signs"],
)
@pytest.mark.parametrize("summarizer", ["generic", "generic?action_chars=2000000"], ids=["cut", "whole"])
def test_a_million_characters_are_judged_at_once(tmp_path: Path, action: str, summarizer: str) -> None:
    path = fill(tmp_path / "bank.db", 12)
    env = ConfidenceWrapper(Shell(), "precedent", f"{path}?scope=shell", learn="off", summarizer=summarizer)
    env.reset()
    env.assess(FIRST)  # fitted now, so that the time below is that of the action
    start = time.process_time()
    for _ in range(2):
        block = env.step(action)[4]["ceb"]
        assert block["scored"] and 0 < block["confidence"] < 1
    assert time.process_time() - start < 5, "where work is linear, both steps together take at most 0.4 s"
    env.close()


class Sensors(gym.Env[Any, Any]):
    """Neither texts nor words of ours: observations and actions of nested numbers, NaN among them."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self) -> None:
        box = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = gym.spaces.Dict({"arm": box, "grip": gym.spaces.Discrete(2)})
        self.action_space = gym.spaces.Tuple((gym.spaces.Box(-1, 1, (2,)), gym.spaces.MultiBinary(3)))
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return {"arm": np.zeros(3, np.float32), "grip": 0}, {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        arm = np.array([np.nan, np.inf, self._steps], np.float32)
        return {"arm": arm, "grip": 1}, float(self._steps % 2), self._steps == 4, False, {}


def test_an_environment_unlike_any_other_is_learned_from(tmp_path: Path) -> None:
    env = ConfidenceWrapper(Sensors(), "precedent", str(tmp_path / "bank.db"), "reward_level")
    env.action_space.seed(0)
    for _ in range(20):
        env.reset()
        blocks = [env.step(env.action_space.sample())[4]["ceb"] for _ in range(4)]
    assert all(block["scored"] and 0 < block["confidence"] < 1 for block in blocks)
    records = env.bank.records("Sensors")
    assert len(records) == 80
    assert all(np.isfinite(list(record.features.values())).all() for record in records)
    # the reward level goes up and down, so that the position in the episode tells what rises
    assert blocks[2]["confidence"] > 0.5 > blocks[3]["confidence"]
    env.close()


def test_records_of_an_unlike_environment_read_beside_do_not_stop_learning(tmp_path: Path) -> None:
    path = fill(tmp_path / "bank.db")
    env = ConfidenceWrapper(Sensors(), "precedent", f"{path}?scope=sensors&read_scopes=shell", "reward_level")
    env.action_space.seed(0)
    env.reset()
    blocks = [env.step(env.action_space.sample())[4]["ceb"] for _ in range(4)]
    assert all(block["scored"] and 0 < block["confidence"] < 1 for block in blocks)
    env.close()


def test_a_fitted_critic_says_how_many_records_it_refitted_from_text(tmp_path: Path) -> None:
    path = fill(tmp_path / "bank.db", change=lambda features: {VERSION_KEY: FEATURES_VERSION + 1.0})
    with closing(SqlBank(f"sqlite:///{path}", read_only=True)) as bank:
        assert PrecedentCritic().fit(bank.records("shell")).refitted_from_text == 2 * EPISODES
