"""What a recorded stream holds: a header, episodes, steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FORMAT_NAME: Final = "ceb-stream"
FORMAT_VERSION: Final = 1
SOURCE_EPISODE: Final = "source_episode"
"""Key in an episode's metadata: episodes that share its text are parts of one run."""


@dataclass(frozen=True, slots=True)
class StreamHeader:
    """The first line of a stream.

    Attributes:
        env_id: The environment the runs were recorded in.
        label_rule: Canonical spec string of the rule behind the steps' labels, such as
            `reward_level?first_baseline=0`; None when people annotated them, or there are none.
        provenance: Where the runs come from: anything JSON can hold.
    """

    env_id: str
    label_rule: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One executed step of a recorded run.

    Attributes:
        state: What the agent saw before the action; may be empty.
        action: What the agent did, as text.
        outcome: What came after the action; may be empty.
        reward: What the environment paid; 0.0 where it pays none.
        label: Reference label (True: productive), for evaluation only; None when unknown.
        logprobs: Natural-log probabilities of the action's tokens, shape (n_tokens,); None when unknown.
        metadata: Anything else JSON can hold; nothing in ceb_gym reads it.
    """

    state: str
    action: str
    outcome: str
    reward: float
    label: bool | None = None
    logprobs: tuple[float, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One recorded run.

    Attributes:
        episode_id: Unique in the stream, not empty.
        task: What the agent was asked to do; may be empty.
        steps: At least one, in order.
        initial_reward: Reward of doing nothing, where it is known.
        success: The environment's verdict on the whole run, where it gave one.
        metadata: Anything else JSON can hold. Evaluation reads `source_episode`: episodes that share it are
            parts of one run, which are resampled together.
    """

    episode_id: str
    task: str
    steps: tuple[RecordedStep, ...]
    initial_reward: float | None = None
    success: bool | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
