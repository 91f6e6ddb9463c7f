"""`--labeler given`: the bank learns from a stream's own reference labels, after each episode.

An oracle, for streams whose labels people annotated and no rule can give. It lives here and is fed after the
end of an episode, since reference labels are for evaluation only: no part of the judging side can reach them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import gymnasium as gym

from ceb_gym.engine.learning import label_stored
from ceb_gym.errors import ConfigurationError, UsageError
from ceb_gym.protocols import Bank
from ceb_gym.streams.reader import Stream
from ceb_gym.streams.values import SOURCE_EPISODE
from ceb_gym.types import StepLabel, Trajectory

GIVEN: Final = "given"

Labels = Sequence[bool | None]


def source_episodes(stream: Stream) -> dict[str, str]:
    """The run that each recorded episode is a part of, by episode id; only those that name one."""
    named = ((episode.episode_id, episode.metadata.get(SOURCE_EPISODE)) for episode in stream)
    return {episode_id: source for episode_id, source in named if isinstance(source, str) and source}


def reference_labels_of(env: gym.Env[Any, Any]) -> Labels | None:
    """The reference labels of the episode that just ended; None where the environment gives none.

    An environment gives them only after its own end, so an episode that was cut short has none.
    """
    try:
        reference: Callable[[], Labels] = env.get_wrapper_attr("reference_labels")
    except AttributeError:
        return None
    try:
        return reference()
    except UsageError:  # a policy or a time limit ended the episode before the environment did
        return None


def require_reference_labels(env: gym.Env[Any, Any]) -> None:
    """Raises ConfigurationError for an environment that never gives reference labels."""
    try:
        env.get_wrapper_attr("reference_labels")
    except AttributeError:
        raise ConfigurationError(
            f"{type(env.unwrapped).__name__} has no reference labels, so there is nothing to learn from: "
            "--labeler given goes with --stream. Name another labeler."
        ) from None


class _GivenLabeler:
    """Gives the executed steps of one episode the labels in hand; steps without one stay unlabelled."""

    name = GIVEN
    needs_ending = True
    past_episodes = 0

    def __init__(self, labels: Labels) -> None:
        self._labels = labels

    def label(self, trajectory: Trajectory, past_rewards: Sequence[Sequence[float]] = ()) -> list[StepLabel]:
        """Returns the label of each executed step."""
        executed = [step for step in trajectory.steps if step.executed]
        return [
            StepLabel(step.index, label, None if label is None else float(label))
            for step, label in zip(executed, self._labels, strict=False)
        ]


class GivenLabels:
    """Labels stored trajectories once their run is over.

    Episodes that are parts of one run wait for the last of them: until then the run is not finished, and its
    own steps must not serve as precedents for one another.

    Args:
        sources: The run that an episode is a part of, by recorded episode id.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources
        self._left = Counter(sources.values())
        self._waiting: dict[str, list[tuple[str, Labels]]] = defaultdict(list)

    def episode_ended(self, bank: Bank, episode_id: str, recorded_id: str, labels: Labels | None) -> None:
        """Takes the labels of an episode, and labels all of its run where that is over.

        Args:
            bank: Holds the trajectory, which waits for labels.
            episode_id: Its id in the bank.
            recorded_id: Its id in the stream.
            labels: One for each executed step; None where the episode was cut short and has none.
        """
        source = self._sources.get(recorded_id)
        if labels is not None:
            self._waiting[source or ""].append((episode_id, labels))
        if source is not None:
            self._left[source] -= 1
        if source is None or self._left[source] <= 0:
            self._release(bank, source or "")

    def finish(self, bank: Bank) -> None:
        """Labels what still waits for the rest of its run, which is not going to be played."""
        for source in list(self._waiting):
            self._release(bank, source)

    def _release(self, bank: Bank, source: str) -> None:
        waiting = self._waiting[source]
        names = {episode_id for episode_id, _ in waiting}
        keys = [key for key in bank.pending() if key.episode_id in names]
        while waiting:  # each leaves only when it is labelled: Ctrl-C may come between
            episode_id, labels = waiting[0]
            for key in keys:
                if key.episode_id == episode_id:
                    label_stored(bank, _GivenLabeler(labels), key)
            waiting.pop(0)
        del self._waiting[source]
