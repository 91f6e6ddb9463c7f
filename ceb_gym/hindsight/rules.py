"""Pseudo-labels by rule: from rewards, from the final outcome, or by the user's own function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from ceb_gym.errors import ConfigurationError, LabelerError
from ceb_gym.streams.reward_rules import reward_level_labels, reward_level_name
from ceb_gym.text import number_text
from ceb_gym.types import Step, StepLabel, Trajectory


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_finished(trajectory: Trajectory) -> bool:
    """Whether the environment ended the episode; what came after an abandoned one is not known."""
    return trajectory.ending in ("terminated", "truncated")


def labellable_steps(trajectory: Trajectory) -> list[Step]:
    """The steps that may be labelled: executed, and with a known outcome."""
    return [step for step in trajectory.steps if step.executed and step.outcome is not None]


def _rewards(steps: Sequence[Step]) -> list[float] | None:
    """The steps' rewards, or None where one is unknown: then no rule on rewards can say anything."""
    rewards = [step.reward for step in steps if step.reward is not None]
    return rewards if len(rewards) == len(steps) else None


def _certain(step: Step, label: bool | None) -> StepLabel:
    return StepLabel(step.index, label, None if label is None else float(label))


class RewardLevelLabeler:
    """Productive when the reward, a level, rises by more than 0.05, or ends at 0.7 or more without a fall.

    Rises are rounded to 4 places first, since logged rises of exactly 0.05 fall both ways in floating point.

    Args:
        first_baseline: What precedes the first reward: 0 (the paper), or "initial", the reward of doing
            nothing as the environment states it in `info["initial_reward"]` at reset.
        decimals: Places that rewards are rounded to; None compares the raw floats.

    Source: arXiv 2607.12397, InterCode-Bash.
    """

    needs_ending = False
    past_episodes = 0

    def __init__(self, first_baseline: str | float = 0, decimals: int | None = 4) -> None:
        if first_baseline != "initial" and not _is_number(first_baseline):
            raise ConfigurationError(
                f'first_baseline is {first_baseline!r}: give a finite number or "initial".'
            )
        if decimals is not None and (not isinstance(decimals, int) or not 2 <= decimals <= 12):
            raise ConfigurationError(f"decimals is {decimals!r}: give a whole number from 2 to 12, or none.")
        self._first_baseline = first_baseline
        self._decimals = decimals
        shown = first_baseline if isinstance(first_baseline, str) else number_text(first_baseline)
        self.name = reward_level_name(shown, decimals)

    def label(self, trajectory: Trajectory, past_rewards: Sequence[Sequence[float]] = ()) -> list[StepLabel]:
        """Returns a label for each executed step."""
        baseline = self._first_baseline
        if isinstance(baseline, str):
            if trajectory.initial_reward is None:
                raise LabelerError(
                    f"Episode {trajectory.episode_id} states no initial reward, which {self.name} needs: "
                    'use first_baseline=0, or an environment whose reset gives info["initial_reward"].'
                )
            baseline = trajectory.initial_reward
        steps = labellable_steps(trajectory)
        rewards = _rewards(steps)
        if rewards is None:
            return [_certain(step, None) for step in steps]
        labels = reward_level_labels(
            rewards, baseline=float(baseline), decimals=self._decimals, ended=trajectory.ending != "segmented"
        )
        return [_certain(step, label) for step, label in zip(steps, labels, strict=True)]


class ReturnLabeler:
    """Productive when the discounted return-to-go exceeds the running median at the same step index.

    For rewards that are increments, as Gymnasium's are. The median is taken over the newest finished episodes
    of the scope that were at least as long; where there is none, the step stays unlabelled. So do all steps
    of an episode that was left before it ended, whose returns are not known.

    Args:
        gamma: Discount factor in (0, 1].
        window: How many finished episodes the median looks back over.
    """

    needs_ending = True

    def __init__(self, gamma: float = 0.99, window: int = 100) -> None:
        if not _is_number(gamma) or not 0 < gamma <= 1:
            raise ConfigurationError(f"gamma is {gamma!r}: give a discount factor in (0, 1].")
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ConfigurationError(f"window is {window!r}: give a whole number of episodes, at least 1.")
        self._gamma = float(gamma)
        self.past_episodes = window
        self.name = f"return:{number_text(gamma)}" + ("" if window == 100 else f"?window={window}")

    def label(self, trajectory: Trajectory, past_rewards: Sequence[Sequence[float]] = ()) -> list[StepLabel]:
        """Returns a label for each executed step, None where no earlier episode got as far."""
        steps = labellable_steps(trajectory)
        rewards = _rewards(steps)
        if rewards is None or not _is_finished(trajectory):
            return [_certain(step, None) for step in steps]
        past = [self._returns_to_go(earlier) for earlier in past_rewards]
        labels = []
        for position, value in enumerate(self._returns_to_go(rewards)):
            earlier = [returns[position] for returns in past if len(returns) > position]
            label = value > median(earlier) + 1e-12 if earlier else None
            labels.append(_certain(steps[position], label))
        return labels

    def _returns_to_go(self, rewards: Sequence[float]) -> list[float]:
        returns: list[float] = []
        total = 0.0
        for reward in reversed(rewards):
            total = reward + self._gamma * total
            returns.append(total)
        return returns[::-1]


class SuccessLabeler:
    """Gives every executed step the episode's final outcome.

    Args:
        reward_above: Where the environment states no success of its own (`info["success"]` or
            `info["is_success"]` at the end), the episode counts as a success when its last reward exceeds
            this. None: such episodes stay unlabelled, and so do those that were left before they ended.
    """

    needs_ending = True
    past_episodes = 0

    def __init__(self, reward_above: float | None = None) -> None:
        if reward_above is not None and not _is_number(reward_above):
            raise ConfigurationError(f"reward_above is {reward_above!r}: give a finite number.")
        self._reward_above = reward_above
        self.name = "success" + ("" if reward_above is None else f"?reward_above={number_text(reward_above)}")

    def label(self, trajectory: Trajectory, past_rewards: Sequence[Sequence[float]] = ()) -> list[StepLabel]:
        """Returns the same label for each executed step."""
        steps = labellable_steps(trajectory)
        success = trajectory.success
        last_reward = steps[-1].reward if steps and _is_finished(trajectory) else None
        if success is None and self._reward_above is not None and last_reward is not None:
            success = last_reward > self._reward_above
        return [_certain(step, success) for step in steps]


class CallableLabeler:
    """A user's function as labeler.

    Args:
        function: Called with the trajectory; returns True, False or None for each executed step with an
            outcome, in order, or a list of StepLabel.
        name: Stored with each record; by default the function's own name.
    """

    needs_ending = True
    past_episodes = 0

    def __init__(self, function: Callable[[Trajectory], Sequence[Any]], name: str | None = None) -> None:
        self._function = function
        self.name = name or f"callable:{getattr(function, '__qualname__', type(function).__name__)}"

    def label(self, trajectory: Trajectory, past_rewards: Sequence[Sequence[float]] = ()) -> list[StepLabel]:
        """Returns what the function says. Raises LabelerError when that does not fit the steps."""
        steps = labellable_steps(trajectory)
        answer = self._function(trajectory)
        try:
            labels = list(answer)
        except TypeError:
            raise LabelerError(
                f"{self.name} returned {answer!r}: give a list with one label for each executed step."
            ) from None
        if labels and all(isinstance(label, StepLabel) for label in labels):
            return labels
        if len(labels) != len(steps):
            raise LabelerError(
                f"{self.name} returned {len(labels)} labels for {len(steps)} executed steps: "
                "give one for each."
            )
        for label in labels:
            if not _is_label(label):
                raise LabelerError(f"{self.name} returned {label!r} as a label: give True, False or None.")
        return [
            _certain(step, None if label is None else bool(label))
            for step, label in zip(steps, labels, strict=True)
        ]


def _is_label(label: Any) -> bool:
    try:
        return label is None or bool(label in (0, 1))
    except ValueError:  # an array of several values
        return False
