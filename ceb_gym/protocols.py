"""The seams: what each exchangeable part must offer. Batch first; one step is a batch of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ceb_gym.types import (
    Changes,
    Claim,
    Decision,
    Pin,
    Precedents,
    Query,
    Record,
    Step,
    StepLabel,
    Trajectory,
    TrajectoryKey,
    TrajectoryStatus,
    Verdict,
)


@runtime_checkable
class Critic(Protocol):
    """Gives a confidence to each proposed action.

    Attributes:
        name: Goes to `info["ceb"]["source"]` and into the bank.
        k: How many precedents per class it wants; 0 means none are looked up.
    """

    @property
    def name(self) -> str:
        """Which critic this is."""
        ...

    @property
    def k(self) -> int:
        """How many precedents per class it wants."""
        ...

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns one verdict per query, in order. Raises CriticError when it cannot answer."""
        ...


@runtime_checkable
class LearningCritic(Critic, Protocol):
    """A critic that learns from the bank: `fit` gives the critic that judges at one revision.

    What `fit` returns depends on the records alone, so a restart gives the same critic again, and lanes
    that are pinned to different revisions are each judged by their own.

    Attributes:
        incremental: Whether `fit` can start from the critic fitted at an earlier revision and see only the
            records added since; where several scopes are read, their order must not matter then. Otherwise
            it sees all records, at revisions spaced so that the total cost stays linear in the number of
            records.
    """

    @property
    def incremental(self) -> bool:
        """Whether `fit` can continue from `previous`."""
        ...

    def fit(self, records: Sequence[Record], previous: Critic | None = None) -> Critic:
        """Returns the critic learned from these records (after those of `previous`, if given)."""
        ...


class View(Protocol):
    """A retriever pinned to revisions; never changes."""

    def find(self, queries: Sequence[Query], k: int) -> list[Precedents]:
        """Returns for each query the k best records of each class, best first."""
        ...


@runtime_checkable
class Retriever(Protocol):
    """Finds precedents."""

    def view(self, pins: tuple[Pin, ...]) -> View:
        """Returns what the given scopes held at the given revisions; the first pin is the own scope."""
        ...

    def save(self) -> None:
        """Writes what speeds up the next start (may do nothing)."""
        ...


@runtime_checkable
class HindsightLabeler(Protocol):
    """Turns a finished episode into pseudo-labels.

    Attributes:
        name: Canonical spec string, stored with each record.
        needs_ending: Whether labels can only be given when the episode has ended.
        past_episodes: How many earlier episodes' rewards it wants to see.
    """

    @property
    def name(self) -> str:
        """The labeler's canonical spec string."""
        ...

    @property
    def needs_ending(self) -> bool:
        """Whether it can label only when the episode has ended."""
        ...

    @property
    def past_episodes(self) -> int:
        """How many earlier finished episodes' rewards it wants to see."""
        ...

    def label(self, trajectory: Trajectory, past_rewards: Sequence[Sequence[float]] = ()) -> list[StepLabel]:
        """Returns a label for each executed step of the episode so far (None inside: unlabelled)."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Decides what happens with a judged action. One instance serves one lane.

    Attributes:
        blocking: Whether it can keep an action from being executed.
    """

    @property
    def blocking(self) -> bool:
        """Whether it can keep an action from being executed."""
        ...

    def begin_episode(self) -> None:
        """Forgets what counts per episode."""
        ...

    def decide(self, query: Query, verdict: Verdict) -> Decision:
        """Returns the decision; changes nothing, so that an action can be assessed without a step."""
        ...

    def observe(self, verdict: Verdict, decision: Decision) -> None:
        """Learns which decision was really taken."""
        ...


@runtime_checkable
class Reviewer(Protocol):
    """Has the last word on a deferred action: a person, a program, a larger model."""

    def review(self, query: Query, verdict: Verdict, precedents: Precedents) -> Decision:
        """Returns execute, defer, modify (with the replacement) or terminate."""
        ...


@runtime_checkable
class Summarizer(Protocol):
    """Turns observations and actions of one kind of environment into compact text."""

    def task(self, observation: Any, info: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns the task, or "" when the environment states none."""
        ...

    def state(self, observation: Any, info: Mapping[str, Any], action: Any) -> str:
        """Returns what is known before the action."""
        ...

    def action(self, action: Any) -> str:
        """Returns the action as text."""
        ...

    def outcome(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Returns what came after the action."""
        ...


class Settings(Protocol):
    """Small values frozen per scope; the first writer wins."""

    def setting(self, scope: str, name: str) -> str | None:
        """Returns the value, or None where it was never set."""
        ...

    def put_setting(self, scope: str, name: str, value: str) -> str:
        """Stores the value unless there is one; returns the value that holds."""
        ...


@runtime_checkable
class Bank(Settings, Protocol):
    """Keeps trajectories and records; many processes may share one."""

    @property
    def bank_id(self) -> str:
        """Identity of the stored bank; a copied file keeps it."""
        ...

    @property
    def url(self) -> str:
        """Where the bank is, without passwords."""
        ...

    def new_run(self) -> str:
        """Returns a run id that this bank never gave before."""
        ...

    def revision(self, scope: str) -> int:
        """Returns the scope's newest revision; 0 for a scope without records."""
        ...

    def digest(self, scope: str, revision: int) -> str:
        """Returns the running digest of all commits of the scope up to the revision ("" at 0)."""
        ...

    def add_trajectory(self, trajectory: Trajectory, *, status: TrajectoryStatus = "pending") -> None:
        """Stores a trajectory; storing the same again does nothing.

        "pending" waits for labels, "held" is kept without (until asked for), "open" is a segment that can
        only be labelled when its episode has ended: a later segment of the episode that is pending or held
        gives its open ones the same status.

        Raises:
            BankConflictError: If the key is taken by other content.
        """
        ...

    def journal(self, trajectory: Trajectory, step: Step) -> None:
        """Notes what is about to be executed, before it is: for a look after a crash, never banked."""
        ...

    def pending(self, scope: str | None = None, *, held: bool = False) -> list[TrajectoryKey]:
        """Returns the trajectories that wait for labels, oldest first."""
        ...

    def claim(self, key: TrajectoryKey, *, lease_s: float = 600.0) -> Claim | None:
        """Returns the right to label, or None where it is labelled or another's claim still holds."""
        ...

    def release(self, claim: Claim) -> None:
        """Gives the right back without labels."""
        ...

    def episode(self, episode_id: str, *, until_segment: int | None = None) -> Trajectory:
        """Returns all stored segments of an episode (up to the given one) as one trajectory."""
        ...

    def commit_labels(self, claim: Claim, labels: Sequence[StepLabel], labeler: str) -> int | None:
        """Stores labels, votes and records as the scope's next revision and returns it.

        Only labels whose index lies in the claimed segment count. Returns None where the claim was lost.
        """
        ...

    def records(self, scope: str, *, since: int = 0, until: int | None = None) -> list[Record]:
        """Returns records added after `since` and alive at `until` (default: now), in commit order."""
        ...

    def records_by_id(self, record_ids: Sequence[str]) -> dict[str, Record]:
        """Returns the records with these ids, removed ones too."""
        ...

    def changes(self, scope: str, since: int, until: int) -> Changes:
        """Returns what was added and removed. Raises RevisionGoneError below the scope's floor."""
        ...

    def past_rewards(self, scope: str, limit: int, *, before: str | None = None) -> list[tuple[float, ...]]:
        """Returns the executed steps' rewards of the newest finished episodes, newest first.

        With `before`, only episodes stored before the one with this id count.
        """
        ...

    def close(self) -> None:
        """Closes all connections."""
        ...
