"""Overhead of `ConfidenceWrapper` per step, beside Gymnasium's own RecordEpisodeStatistics.

Run: python benchmarks/bench_wrapper.py [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import RecordEpisodeStatistics

from ceb_gym import ConfidenceWrapper


def seconds_per_step(env: gym.Env[Any, Any], steps: int) -> float:
    """Steps with alternating actions, resets not counted."""
    env.reset(seed=0)
    spent = 0.0
    for index in range(steps):
        action = index % 2
        started = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        spent += time.perf_counter() - started
        if terminated or truncated:
            env.reset()
    return spent / steps


def overheads(make: Callable[[], gym.Env[Any, Any]], steps: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds per step of each variant, measured in turn in every round."""
    variants: dict[str, Callable[[], gym.Env[Any, Any]]] = {
        "no wrapper": make,
        "RecordEpisodeStatistics": lambda: RecordEpisodeStatistics(make()),
        "constant critic, learn=off": lambda: ConfidenceWrapper(make(), critic="constant:0.5", learn="off"),
        "constant critic, learn=inline": lambda: ConfidenceWrapper(
            make(), critic="constant:0.5", labeler="return:0.99"
        ),
        "neighbors critic, learn=inline": lambda: ConfidenceWrapper(
            make(), critic="neighbors", labeler="return:0.99"
        ),
    }
    measured: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, build in variants.items():
            env = build()
            measured[name].append(seconds_per_step(env, steps) * 1e6)
            env.close()
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    arguments = parser.parse_args()
    steps, rounds = (500, 3) if arguments.quick else (3_000, 5)
    for env_id in ("CartPole-v1", "FrozenLake-v1"):
        measured = overheads(lambda env_id=env_id: gym.make(env_id), steps, rounds)
        base = statistics.median(measured["no wrapper"])
        peer = statistics.median(measured["RecordEpisodeStatistics"]) - base
        print(f"\n### {env_id}: overhead per step, median of {rounds} rounds of {steps} steps\n")
        print("| variant | step, us | overhead, us | / RecordEpisodeStatistics |\n|---|---|---|---|")
        for name, values in measured.items():
            median = statistics.median(values)
            ratio = f"{(median - base) / peer:.1f}" if name != "no wrapper" else ""
            print(f"| {name} | {median:.1f} | {median - base:.1f} | {ratio} |")


if __name__ == "__main__":
    main()
