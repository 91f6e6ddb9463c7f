"""The step rule for environments whose reward is a level, not an increment (InterCode)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MIN_RISE: Final = 0.05
GOOD_LEVEL: Final = 0.7


def reward_level_labels(
    rewards: Sequence[float], *, baseline: float, decimals: int | None = 4, ended: bool = True
) -> list[bool]:
    """Says which steps were productive, from the reward level after each step.

    A step is productive when the level rises by more than 0.05 over the level before it, or when it is
    the last one, its level is at least 0.7, and the level does not fall.

    Args:
        rewards: Levels after each step of one whole episode, shape (n_steps,), finite.
        baseline: The level before the first step: 0 as in the paper, or the reward of doing nothing.
        decimals: Levels are rounded to this many places and compared as whole numbers, so that a rise of
            exactly 0.05 never counts. None compares the raw floats, where 0.78 to 0.8300000000000001
            counts and 0.67 to 0.72 does not.
        ended: Whether the last reward is the episode's last; False for the first part of a longer one.

    Returns:
        One label per reward.

    Source: arXiv 2607.12397, the InterCode-Bash step criterion.
    """
    unit = 1.0 if decimals is None else 10.0**decimals

    def level(value: float) -> float:
        return value if decimals is None else round(value * unit)

    labels = []
    before = level(baseline)
    for index, reward in enumerate(rewards):
        after = level(reward)
        last = ended and index == len(rewards) - 1
        rises = after - before > level(MIN_RISE)
        labels.append(rises or (last and after >= level(GOOD_LEVEL) and after >= before))
        before = after
    return labels
