"""The step rule for environments whose reward is a level, not an increment (InterCode)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MIN_RISE: Final = 0.05
GOOD_LEVEL: Final = 0.7
DECIMALS: Final = 4


def reward_level_name(first_baseline: str, decimals: int | None) -> str:
    """The rule's canonical spec string, the same for labelers and for streams' reference labels."""
    name = f"reward_level?first_baseline={first_baseline}"
    return name if decimals == DECIMALS else f"{name}&decimals={decimals}".lower()


def reward_level_labels(
    rewards: Sequence[float], *, baseline: float, decimals: int | None = 4, ended: bool = True
) -> list[bool]:
    """Says which steps were productive, from the reward level after each step.

    A step is productive when the level rises by more than 0.05 over the level before it, or when it is
    the last one, its level is at least 0.7, and the level does not fall.

    Args:
        rewards: Levels after each step of one whole episode, shape (n_steps,), finite.
        baseline: The level before the first step: 0 as in the paper, or the reward of doing nothing.
        decimals: Levels and their differences are rounded to this many places, so that a rise of exactly
            0.05 never counts. None takes the raw floats, in which 0.83 to 0.88 counts and 0.67 to 0.72
            does not.
        ended: Whether the last reward is the episode's last; False for the first part of a longer one.

    Returns:
        One label per reward.

    Source: arXiv 2607.12397, the InterCode-Bash step criterion.
    """

    def rounded(value: float) -> float:
        return value if decimals is None else round(value, decimals)

    labels = []
    before = rounded(baseline)
    for index, reward in enumerate(rewards):
        after = rounded(reward)
        last = ended and index == len(rewards) - 1
        # The difference of two rounded floats is not itself rounded: 0.88 - 0.83 > 0.05.
        rises = rounded(after - before) > MIN_RISE
        labels.append(rises or (last and after >= GOOD_LEVEL and after >= before))
        before = after
    return labels
