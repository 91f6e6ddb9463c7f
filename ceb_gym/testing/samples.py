"""Small made-up values and a clock that is set by hand, for tests of anything that uses a bank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ceb_gym.protocols import Bank
from ceb_gym.types import Step, StepLabel, Trajectory, TrajectoryKey


class ManualClock:
    """A clock that moves only when told to.

    Attributes:
        now: Seconds since the epoch.
    """

    def __init__(self, now: float = 1_000_000.0):
        self.now = now

    def __call__(self) -> float:
        """Returns the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Moves the time on."""
        self.now += seconds


def make_step(index: int, **changes: Any) -> Step:
    """Returns an executed, scored step with texts of its own; `changes` replace its fields."""
    step = Step(
        index=index,
        state=f"state {index}",
        proposed=f"act {index}",
        action=f"act {index}",
        outcome=f"outcome {index}",
        reward=float(index),
        executed=True,
        confidence=0.75,
        critic="constant:0.75",
    )
    return replace(step, **changes)


def make_trajectory(
    episode_id: str = "episode", steps: int | Sequence[Step] = 3, **changes: Any
) -> Trajectory:
    """Returns a finished trajectory with this many steps, or these steps; `changes` replace its fields."""
    trajectory = Trajectory(
        episode_id=episode_id,
        env_id="env",
        scope="scope",
        task="find the file",
        steps=tuple(make_step(index) for index in range(steps)) if isinstance(steps, int) else tuple(steps),
        ending="terminated",
        success=True,
        created_at=500.0,
    )
    return replace(trajectory, **changes)


def make_labels(trajectory: Trajectory) -> list[StepLabel]:
    """Returns a label for each step: even ones are productive."""
    return [StepLabel(step.index, step.index % 2 == 0, 1.0 - step.index % 2) for step in trajectory.steps]


def bank_episode(bank: Bank, trajectory: Trajectory, labels: Sequence[StepLabel] | None = None) -> int:
    """Stores, claims and labels a trajectory; returns the revision."""
    bank.add_trajectory(trajectory)
    claim = bank.claim(TrajectoryKey(trajectory.episode_id, trajectory.segment))
    assert claim is not None
    revision = bank.commit_labels(claim, make_labels(trajectory) if labels is None else labels, "test")
    assert revision is not None
    return revision
