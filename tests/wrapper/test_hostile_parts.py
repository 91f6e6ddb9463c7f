"""What foreign environments, policies, agents and file systems do: nothing may be lost or leak."""

from __future__ import annotations

import gc
import math
import os
import sqlite3
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from wrapper_parts import ScriptedTextEnv, TableCritic

from ceb_gym import ConfidenceWrapper, Decision
from ceb_gym.errors import BankError, ConfigurationError, UsageError

SCOPE = "ScriptedTextEnv"


def wrapped(**arguments: Any) -> ConfidenceWrapper[Any, Any]:
    arguments = {"critic": "counts", "labeler": "success?reward_above=0", **arguments}
    return ConfidenceWrapper(ScriptedTextEnv(), **arguments)


def play(env: gym.Env[Any, Any], actions: str = "abc") -> None:
    env.reset()
    for action in actions:
        env.step(action)


def test_a_dropped_wrappers_memory_bank_never_serves_another() -> None:
    for _ in range(30):
        env = wrapped(bank="memory:")
        env.reset()
        assert env.pins[0].revision == 0
        for action in "abc":
            env.step(action)
        del env
        gc.collect()


def test_a_dropped_wrapper_gives_its_engine_back(tmp_path: Path) -> None:
    from ceb_gym.build import engines

    env = wrapped(bank=str(tmp_path / "b.db"), learn="background")
    play(env)
    before = len(engines._shared)
    del env
    gc.collect()
    assert len(engines._shared) == before - 1
    again = wrapped(bank=str(tmp_path / "b.db"))
    assert again.reset()[1]["ceb"]["bank_revision"] == 1
    again.close()


def test_a_second_wrapper_around_the_first_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has a ConfidenceWrapper already"):
        ConfidenceWrapper(gym.wrappers.TimeLimit(wrapped(), 5), critic="counts", learn="off")


def test_a_vector_environment_is_refused_with_the_way_to_wrap_it() -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(ConfigurationError, match="wrap its lanes"):
        ConfidenceWrapper(envs, critic="counts", learn="off")
    envs.close()


@pytest.mark.parametrize("scope", ["x" * 301, "a\x00b", "\ud800"])
def test_a_scope_that_no_bank_can_store_is_refused_at_once(scope: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be stored"):
        wrapped(bank="memory:?scope={user}", scope_fields={"user": scope})


def test_a_relative_bank_is_where_it_was_when_the_wrapper_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        envs.append(wrapped(bank="bank.db"))
    for env, episodes in zip(envs, (1, 2), strict=True):
        for _ in range(episodes):
            play(env)
        assert len(env.bank.records(SCOPE)) == 3 * episodes
        env.close()
    assert (tmp_path / "one" / "bank.db").exists() and (tmp_path / "two" / "bank.db").exists()


def test_a_path_object_names_a_bank(tmp_path: Path) -> None:
    env = wrapped(bank=tmp_path / "bank.db")
    play(env)
    env.close()
    assert (tmp_path / "bank.db").exists()


@pytest.mark.parametrize(("argument", "value"), [("bank", None), ("bank", 5), ("seed", -1), ("seed", "x")])
def test_arguments_of_the_wrong_kind_are_refused_at_once(argument: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=argument):
        wrapped(**{argument: value})


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_bank_file_changed_while_open_is_never_written_to(tmp_path: Path, change: str) -> None:
    own, other = tmp_path / "own.db", tmp_path / "other.db"
    for path in (own, other):
        env = wrapped(bank=str(path))
        play(env)
        env.close()
    env = wrapped(bank=str(own))
    env.reset()
    kept = tmp_path / "kept.db"
    os.rename(own, kept)
    if change == "replaced":
        os.rename(other, own)
    for action in "ab":
        env.step(action)
    with pytest.warns(RuntimeWarning, match=f"{change}.* while it was open"):
        env.step("c")
    with pytest.raises(BankError, match="Put the file back"):
        env.flush()
    os.rename(kept, own)
    env.close()
    check = sqlite3.connect(own)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()
    again = wrapped(bank=str(own))
    again.reset()
    assert len(again.bank.records(SCOPE)) == 6
    again.close()


def test_an_episode_that_cannot_be_stored_holds_up_no_other() -> None:
    times = iter([math.nan])
    env = wrapped(bank="memory:", clock=lambda: next(times, 1.0))
    env.reset()
    env.step("a")
    env.step("b")
    with pytest.warns(RuntimeWarning, match="wait in memory"):
        env.step("c")
    env.reset()
    env.step("d")
    env.step("e")
    with pytest.warns(RuntimeWarning, match="wait in memory"):
        env.step("f")
    assert [record.action for record in env.bank.records(SCOPE)] == list("def")
    with pytest.raises(BankError):
        env.close()


class Odd(ScriptedTextEnv):
    """Returns an odd reward or info at the second step."""

    def __init__(self, reward: Any = 0.5, info: Any = None) -> None:
        super().__init__()
        self.odd = (reward, {} if info is None else info)

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.position == 2:
            reward, info = self.odd
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("reward", [None, "x", 1j, 10**400, np.zeros(2), []])
def test_a_reward_that_is_no_number_is_one_sentence_and_keeps_the_episode(reward: Any) -> None:
    env = ConfidenceWrapper(Odd(reward=reward), critic="counts", labeler="success?reward_above=0")
    env.reset()
    env.step("a")
    with pytest.raises(UsageError, match="which is no number"):
        env.step("b")
    trajectory = env.bank.episode(env.episode_id)
    assert trajectory.ending == "abandoned" and [step.action for step in trajectory.steps] == ["a", "b"]
    assert env.bank.records("Odd") == []
    env.close()


@pytest.mark.parametrize("reward", [np.float32(0.5), np.array([0.5]), np.array(0.5), True, 1, np.int64(1)])
def test_rewards_of_any_numeric_kind_pass_through_untouched(reward: Any) -> None:
    env = ConfidenceWrapper(Odd(reward=reward), critic="counts", labeler="success?reward_above=0")
    env.reset()
    env.step("a")
    assert env.step("b")[1] is reward
    env.close()


@pytest.mark.parametrize("info", ["text", [1], 5])
def test_an_info_that_is_no_dict_is_one_sentence(info: Any) -> None:
    env = ConfidenceWrapper(Odd(info=info), critic="counts", labeler="success?reward_above=0")
    env.reset()
    env.step("a")
    with pytest.raises(UsageError, match="which is no dict"):
        env.step("b")
    env.close()


def test_an_agent_that_edits_its_observation_does_not_change_what_the_critic_sees(
    critic: TableCritic,
) -> None:
    env = ConfidenceWrapper(gym.make("CartPole-v1"), critic=critic, learn="off")
    observation, _ = env.reset(seed=3)
    untouched = env.assess(0).query.state
    observation[:] = 99.0
    env._assessed.clear()
    assert env.assess(0).query.state == untouched


@pytest.mark.parametrize(
    "decision", [None, "defer", Decision("defer", 5), Decision("modify", "x"), Decision("explode")]
)
def test_a_policy_that_returns_no_decision_is_refused_before_the_environment(decision: Any) -> None:
    class Odder:
        blocking = True

        def begin_episode(self) -> None: ...

        def decide(self, query: Any, verdict: Any) -> Any:
            return decision

        def observe(self, verdict: Any, decision: Any) -> None: ...

    inner = ScriptedTextEnv()
    env = ConfidenceWrapper(inner, critic="counts", labeler="none", policy=Odder())
    env.reset()
    with pytest.raises(ConfigurationError, match="policy"):
        env.step("a")
    assert inner.arrived == []
    env.close()


def test_a_policy_that_says_it_never_blocks_may_not_defer() -> None:
    class Liar:
        blocking = False

        def begin_episode(self) -> None: ...

        def decide(self, query: Any, verdict: Any) -> Decision:
            return Decision("defer", "surprise")

        def observe(self, verdict: Any, decision: Any) -> None: ...

    env = ConfidenceWrapper(ScriptedTextEnv(), critic="counts", labeler="none", policy=Liar())
    env.reset()
    with pytest.raises(ConfigurationError, match="`blocking` is False"):
        env.step("a")
    env.close()


@pytest.mark.parametrize("success", ["false", math.nan, [True], 0.5])
def test_a_success_that_is_no_bool_is_no_verdict(success: Any) -> None:
    class Claims(ScriptedTextEnv):
        def step(self, action: str) -> Any:
            *rest, _ = super().step(action)
            return (*rest, {"success": success})

    env = ConfidenceWrapper(Claims(), critic="counts", labeler="success")
    play(env)
    assert env.bank.records("Claims") == []
    env.close()
