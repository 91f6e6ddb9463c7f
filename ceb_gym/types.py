"""The values that travel between the parts: frozen, slotted, free of behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Ending = Literal["terminated", "truncated", "abandoned", "segmented"]
DecisionKind = Literal["execute", "defer", "modify", "terminate"]
TrajectoryStatus = Literal["open", "pending", "labelled", "held"]


@dataclass(frozen=True, slots=True)
class Step:
    """One judged proposal of an episode, executed or not.

    Attributes:
        index: Position in the episode, from 0, counting unexecuted proposals too.
        state: Compact text of what the agent saw before the action.
        proposed: The action the agent asked for, as text.
        action: The action judged in this step: `proposed`, or a reviewer's replacement of it.
        outcome: Text of what came after; None where nothing was executed.
        reward: What the environment returned; None where nothing was executed. Never shown to a critic.
        executed: Whether the action reached the environment.
        confidence: In [0, 1]; None when unscored.
        decision: What the policy decided.
        reason: Why, in words; "" for a plain execution.
        propensity: Probability with which this decision was taken; below 1 only where a policy explores.
        repeated: The repetition flag.
        critic: Which critic gave the confidence.
        features: Numbers computed at judgement from the query alone, by name.
        rationale: The critic's own words.
    """

    index: int
    state: str
    proposed: str
    action: str
    outcome: str | None
    reward: float | None
    executed: bool
    confidence: float | None
    decision: DecisionKind = "execute"
    reason: str = ""
    propensity: float = 1.0
    repeated: bool = False
    critic: str = ""
    features: Mapping[str, float] = field(default_factory=dict)
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """An episode, or one segment of a long one.

    Attributes:
        steps: In order of `Step.index`; a segment starts where the one before it stopped.
        ending: How the episode ended; "segmented" when more of it follows.
        success: The environment's own verdict on the whole episode, if it gave one.
        segment: 0 for the first (usually the only) segment.
        initial_reward: Reward of doing nothing, where the environment states it.
        created_at: Seconds since the epoch.
    """

    episode_id: str
    env_id: str
    scope: str
    task: str
    steps: tuple[Step, ...]
    ending: Ending
    success: bool | None = None
    segment: int = 0
    initial_reward: float | None = None
    created_at: float = 0.0


class TrajectoryKey(NamedTuple):
    """Names one stored trajectory (an episode or a segment of it)."""

    episode_id: str
    segment: int


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """An earlier step of the running episode as a critic may see it: no reward, no label."""

    state: str
    action: str
    outcome: str | None
    executed: bool
    confidence: float | None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token that a language model wrote.

    Attributes:
        token: Its text, as the server gives it.
        logprob: Natural logarithm of its probability; None where the server gave none that is finite.
        top: The most probable tokens in its place with their log probabilities, best first; may be empty.
        is_end: Whether it ends the sequence and stands for no text.
    """

    token: str
    logprob: float | None
    top: tuple[tuple[str, float], ...] = ()
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class SampledAction:
    """One of several actions that an agent sampled: its text and the log probability of its whole text."""

    action: str
    logprob: float


@dataclass(frozen=True, slots=True)
class AgentTrace:
    """How an agent came to its action, for estimators that look at the agent rather than at the action.

    Attributes:
        tokens: The tokens of the action span alone; empty when unknown.
        stated_confidence: The confidence that the agent stated with the action, in [0, 1].
        samples: All actions that the agent sampled, the chosen one among them.
    """

    tokens: tuple[TokenLogprob, ...] = ()
    stated_confidence: float | None = None
    samples: tuple[SampledAction, ...] = ()


class TracedAction(str):
    """An action that is a plain string to the environment and carries how the agent came to it."""

    trace: AgentTrace

    def __new__(cls, text: str, trace: AgentTrace) -> TracedAction:
        """Returns the text with its trace."""
        action = super().__new__(cls, text)
        action.trace = trace
        return action

    def __getnewargs__(self) -> tuple[str, AgentTrace]:  # type: ignore[override]
        """What a copy or a pickle is made from."""
        return str(self), self.trace


@dataclass(frozen=True, slots=True)
class Query:
    """All that a critic may know about a proposed action.

    Attributes:
        revision: The revision of `scope` that is pinned for the running episode.
        history: The last steps of the running episode, oldest first.
        repeated: The repetition flag.
        step_index: Position in the episode, from 0.
        trace: How the agent came to the action, where it says so; never shown in a prompt.
    """

    env_id: str
    scope: str
    revision: int
    episode_id: str
    task: str
    state: str
    action: str
    history: tuple[HistoryItem, ...]
    repeated: bool
    step_index: int
    trace: AgentTrace | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """One sample of a labeler for one step; `label` is None when it could not be read."""

    label: bool | None
    seed: int | None = None
    model: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class StepLabel:
    """The hindsight label of the step with this index; None closes the step as unlabelled.

    Attributes:
        vote_share: Mean of the valid votes, in [0, 1]; None when unlabelled.
        votes: The votes, where the labeler votes.
    """

    index: int
    label: bool | None
    vote_share: float | None = None
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """A labelled, executed step in the bank.

    Attributes:
        record_id: `episode:step:labeling`, unique within a bank.
        label: The pseudo-label: True is productive.
        vote_share: Mean of the valid votes, in [0, 1].
        votes: Number of valid votes.
        confidence: The score given online before execution; None when unscored.
        agrees: Whether `confidence >= 0.5` equals `label`; None when unscored.
        critic: Which critic gave the confidence.
        labeler: Which labeler gave the label.
        created_at: Seconds since the epoch.
        features: The numbers stored with the step.
    """

    record_id: str
    scope: str
    episode_id: str
    step_index: int
    task: str
    state: str
    action: str
    outcome: str
    label: bool
    vote_share: float
    votes: int
    confidence: float | None
    agrees: bool | None
    repeated: bool
    critic: str
    labeler: str
    created_at: float
    features: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Precedent:
    """A record and its cosine similarity to the query, in [0, 1]."""

    record: Record
    similarity: float


@dataclass(frozen=True, slots=True)
class Precedents:
    """The most similar productive and unproductive records, best first.

    Attributes:
        revision: The pinned revision of the query's own scope they come from.
    """

    productive: tuple[Precedent, ...] = ()
    unproductive: tuple[Precedent, ...] = ()
    revision: int = 0


class Pin(NamedTuple):
    """A scope at one of its revisions."""

    scope: str
    revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened to a scope between two revisions.

    Attributes:
        added: Records added after the older and alive at the newer revision, in commit order.
        removed: Ids of records alive at the older revision and removed since.
    """

    added: tuple[Record, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to label one stored trajectory until `until` (seconds since the epoch)."""

    key: TrajectoryKey
    token: str
    until: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A critic's answer.

    Attributes:
        confidence: In [0, 1]; None when unscored.
        rationale: Why, in the critic's words.
        source: Which critic answered.
        usage: What it cost, by name (tokens, requests, seconds).
        features: Numbers the critic computed from the query and wants stored with the step, by name.
    """

    confidence: float | None
    rationale: str = ""
    source: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)
    features: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy or reviewer wants done; `action` is the replacement when `kind` is "modify"."""

    kind: DecisionKind
    reason: str = ""
    action: Any = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """A judged but not yet executed action."""

    query: Query
    verdict: Verdict
    precedents: Precedents
    decision: Decision = Decision("execute")
    features: Mapping[str, float] = field(default_factory=dict)
