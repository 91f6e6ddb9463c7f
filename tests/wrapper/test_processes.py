from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from wrapper_parts import ScriptedTextEnv

from ceb_gym import ConfidenceWrapper
from ceb_gym.bank.store import SqlBank
from ceb_gym.cli.main import main

SCOPE = "ScriptedTextEnv"


def play(env: gym.Env[Any, Any], actions: str = "abc") -> None:
    env.reset()
    for action in actions:
        env.step(action)


def wrapped(path: Path, **arguments: Any) -> ConfidenceWrapper[Any, Any]:
    arguments = {"critic": "neighbors", "labeler": "reward_level", "bank": str(path), **arguments}
    return ConfidenceWrapper(ScriptedTextEnv(), **arguments)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_after_the_bank_was_opened_gives_both_processes_their_own_episodes(tmp_path: Path) -> None:
    env = wrapped(tmp_path / "bank.db")
    play(env)
    env.reset()
    env.step("x")  # the fork happens in mid-episode

    def child() -> None:
        for action in "yz":
            env.step(action)
        play(env)
        env.close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    for action in "bc":
        env.step(action)
    process.join(60)
    assert process.exitcode == 0
    found = [record.action for record in env.bank.records(SCOPE)]
    assert sorted(found) == sorted("abc" + "xbc" + "yz" + "abc")
    assert len({record.record_id for record in env.bank.records(SCOPE)}) == len(found)
    env.close()


def test_wrappers_configured_alike_share_one_engine(tmp_path: Path) -> None:
    first, second = wrapped(tmp_path / "bank.db"), wrapped(tmp_path / "bank.db")
    other = wrapped(tmp_path / "bank.db", critic="counts")
    for env in (first, second, other):
        play(env)
    assert first.bank is second.bank and first.bank is not other.bank
    assert len({env.episode_id for env in (first, second, other)}) == 3
    first.close()
    play(second)
    assert len(second.bank.records(SCOPE)) == 12
    second.close()
    other.close()


def test_banks_in_memory_are_private() -> None:
    first, second = wrapped(Path("memory:")), wrapped(Path("memory:"))
    play(first)
    second.reset()
    assert second.bank.records(SCOPE) == []
    first.close()
    second.close()


def test_threads_with_a_wrapper_each_lose_and_double_nothing(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            env = wrapped(tmp_path / "bank.db")
            for _ in range(10):
                play(env)
            env.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    bank = SqlBank(f"sqlite:///{tmp_path}/bank.db")
    assert len(bank.records(SCOPE)) == 120
    bank.close()


def make_cart_pole(path: Path) -> Any:
    def build() -> gym.Env[Any, Any]:
        return ConfidenceWrapper(
            gym.make("CartPole-v1"), critic="neighbors", labeler="return:0.9", bank=str(path)
        )

    return build


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_of_an_async_vector_env_share_one_bank_file(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    envs = AsyncVectorEnv([make_cart_pole(path)] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    envs.reset(seed=1)
    for step in range(120):
        info = envs.step(envs.action_space.sample())[4]
        assert info["ceb"]["confidence"].dtype == float and info["ceb"]["scored"].dtype == bool
        assert step == 0 or info["ceb"]["bank_revision"].dtype == int
    envs.close()
    bank = SqlBank(f"sqlite:///{path}")
    records = bank.records("CartPole-v1")
    runs = {record.episode_id.rpartition("-")[0] for record in records}
    assert len(runs) == 3 and len({record.record_id for record in records}) == len(records)
    bank.close()


KILLED = """
import os, signal, sys
sys.path.insert(0, {folder!r})
from wrapper_parts import ScriptedTextEnv
from ceb_gym import ConfidenceWrapper

def label(trajectory):
    if {when!r} == "labelling" and trajectory.episode_id.endswith("000002"):
        os.kill(os.getpid(), signal.SIGKILL)
    return [True] * len(trajectory.steps)

env = ConfidenceWrapper(ScriptedTextEnv(), critic="counts", labeler=label, bank={bank!r})
for episode in range(4):
    env.reset()
    for action in "abc":
        env.step(action)
        if {when!r} == "mid-episode" and episode == 2:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("when", "pending"), [("labelling", 1), ("mid-episode", 0)])
def test_kill_9_loses_no_finished_episode_and_doubles_none(tmp_path: Path, when: str, pending: int) -> None:
    script = textwrap.dedent(KILLED).format(
        folder=str(Path(__file__).parent), when=when, bank=str(tmp_path / "bank.db")
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=120)
    assert done.returncode == -signal.SIGKILL
    bank = SqlBank(f"sqlite:///{tmp_path}/bank.db")
    assert len(bank.records(SCOPE)) == 6
    assert len(bank.pending()) == pending
    label = ["bank", "label", "--bank", f"{tmp_path}/bank.db", "--labeler", "success?reward_above=0"]
    assert main(label) == 0  # the dead process's claim still holds
    assert len(bank.pending()) == pending
    assert main([*label, "--take-over"]) == 0
    finished = 6 + 3 * pending
    assert len(bank.records(SCOPE)) == finished and bank.pending() == []
    bank.close()
    env = wrapped(tmp_path / "bank.db")  # life goes on under a run id of its own
    play(env)
    records = env.bank.records(SCOPE)
    assert len(records) == finished + 3 and len({record.record_id for record in records}) == finished + 3
    env.close()


def test_close_twice_and_close_before_reset_are_fine(tmp_path: Path) -> None:
    env = wrapped(tmp_path / "bank.db")
    env.close()
    env.close()
    assert not (tmp_path / "bank.db").exists() and os.listdir(tmp_path) == []


def test_reset_after_close_opens_the_bank_again(tmp_path: Path) -> None:
    env = wrapped(tmp_path / "bank.db")
    play(env)
    env.close()
    play(env)
    assert len(env.bank.records(SCOPE)) == 6
    env.close()
