"""One lane: the running episode of one environment, from `reset` to the bank. Knows nothing of Gymnasium."""

from __future__ import annotations

import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ceb_gym.engine.core import Engine
from ceb_gym.errors import UsageError
from ceb_gym.features import LOOP_WINDOW, is_repeated, step_features
from ceb_gym.protocols import Summarizer
from ceb_gym.text import clean_text
from ceb_gym.types import (
    Assessment,
    Ending,
    HistoryItem,
    Pin,
    Query,
    Step,
    TracedAction,
    Trajectory,
    TrajectoryStatus,
)

HISTORY_STEPS = 16
EarlyReset = Literal["hold", "label", "drop"]


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """What stays the same for all episodes of a lane.

    Attributes:
        scopes: The own scope, then those that are only read.
        as_of: Newest revision of the own scope that may be used; None for all.
        task: Used where the environment states no task.
        segment_steps: Longer episodes are committed in segments of this many steps.
        early_reset: What happens to an episode that is reset before it ended.
        journal_steps: Whether each step is noted in the bank before it runs.
    """

    env_id: str
    scopes: tuple[str, ...]
    as_of: int | None
    task: str
    segment_steps: int
    early_reset: EarlyReset
    journal_steps: bool


class Lane:
    """Builds queries, collects steps, and hands finished trajectories to the learner.

    Args:
        open_engine: Returns the process's engine; asked again after a fork.
        summarizer: Turns observations and actions into text.
        settings: What stays the same.
    """

    def __init__(
        self, open_engine: Callable[[], Engine], summarizer: Summarizer, settings: LaneSettings
    ) -> None:
        self._open_engine = open_engine
        self._summarizer = summarizer
        self._settings = settings
        self._engine: Engine | None = None
        self._episodes = 0
        self._steps: list[Step] = []
        self._pins: tuple[Pin, ...] = ()
        self.running = False
        self.observation: Any = None
        self.info: Mapping[str, Any] = {}

    @property
    def engine(self) -> Engine:
        """The engine of this process; opened at first use, and anew in a forked child."""
        if self._engine is None or self._engine.pid != os.getpid():
            self._engine = self._open_engine()
            self._number = self._engine.new_lane()
            self._episodes = 0
            bind = getattr(self._summarizer, "bind", None)
            if bind is not None:
                bind(self._engine.bank, self._settings.scopes[0])
            if self.running:  # forked in mid-episode: the child banks only what it executes itself
                self._episode_id = self._next_episode_id()
                self._steps = []
        return self._engine

    def _next_episode_id(self) -> str:
        assert self._engine is not None
        episode_id = f"{self._engine.run_id}-{self._number}-{self._episodes:06d}"
        self._episodes += 1
        return episode_id

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The scopes and revisions that the episode is judged by; the own scope first."""
        if not self._pins:
            raise UsageError("No episode has begun: call `reset` first.")
        return self._pins

    @property
    def episode_id(self) -> str:
        """The running (or last) episode's id."""
        if not self._pins:
            raise UsageError("No episode has begun: call `reset` first.")
        return self._episode_id

    def begin(self, observation: Any, info: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Starts an episode; an unfinished one is handled as `early_reset` says."""
        self.leave()
        engine = self.engine
        self._pins = engine.pin(self._settings.scopes, self._settings.as_of)
        self._episode_id = self._next_episode_id()
        task = self._summarizer.task(observation, info, options) or self._settings.task
        self._task = clean_text(task or self._settings.env_id)
        self._steps = []
        self._index = 0
        self._segment = 0
        self._history: deque[HistoryItem] = deque(maxlen=HISTORY_STEPS)
        self._actions: deque[str] = deque(maxlen=LOOP_WINDOW)
        self._initial_reward = _finite_or_none(info.get("initial_reward"))
        self.observation, self.info = observation, info
        self.running = True

    def query(self, action: Any) -> Query:
        """Returns what a critic may know about the action now."""
        text = clean_text(self._summarizer.action(action))
        return Query(
            env_id=self._settings.env_id,
            scope=self._settings.scopes[0],
            revision=self._pins[0].revision,
            episode_id=self._episode_id,
            task=self._task,
            state=clean_text(self._summarizer.state(self.observation, self.info, action)),
            action=text,
            history=tuple(self._history),
            repeated=is_repeated(text, tuple(self._actions)),
            step_index=self._index,
            trace=action.trace if isinstance(action, TracedAction) else None,
        )

    def judge(self, actions: Sequence[Any]) -> list[Assessment]:
        """Judges actions without executing any; the decision is left at "execute"."""
        engine = self.engine
        queries = [self.query(action) for action in actions]
        judgements = engine.judge(queries, [self._pins] * len(queries))
        return [
            Assessment(query, verdict, precedents, features={**step_features(query), **verdict.features})
            for query, (verdict, precedents) in zip(queries, judgements, strict=True)
        ]

    def journal(self, assessment: Assessment, proposed: str) -> None:
        """Notes what is about to be executed, where that was asked for."""
        if self._settings.journal_steps and not self.engine.read_only:
            self.engine.bank.journal(self._trajectory((), "segmented", None), _step(assessment, proposed))

    def append_unexecuted(self, assessment: Assessment, *, propensity: float) -> None:
        """Adds a proposal that did not reach the environment."""
        self._append(_step(assessment, assessment.query.action, propensity=propensity))

    def append_executed(
        self,
        assessment: Assessment,
        *,
        proposed: str,
        propensity: float,
        observation: Any,
        reward: float,
        info: Mapping[str, Any],
    ) -> None:
        """Adds a step that the environment has answered."""
        try:
            outcome = clean_text(self._summarizer.outcome(observation, info))
        except Exception as error:  # foreign code; the step has run and its result must reach the agent
            outcome = f"[no summary: {type(error).__name__}]"
            warnings.warn(f"The summarizer failed on an outcome: {error!r}", RuntimeWarning, stacklevel=3)
        self.observation, self.info = observation, info
        finite = math.isfinite(reward)
        step = _step(
            assessment,
            proposed,
            executed=True,
            outcome=outcome,
            reward=reward if finite else None,
            propensity=propensity,
            note="" if finite else f"the reward was {reward!r}",
        )
        self._append(step)

    def append_failed(self, assessment: Assessment, proposed: str, error: BaseException) -> None:
        """Adds a step during which the environment raised, and keeps the episode as abandoned."""
        note = f"the environment raised {type(error).__name__}: {error}"
        self._append(_step(assessment, proposed, executed=True, note=note), segment=False)
        self._hand_over("abandoned", None, "held")

    def _append(self, step: Step, *, segment: bool = True) -> None:
        self._steps.append(step)
        self._history.append(
            HistoryItem(step.state, step.action, step.outcome, step.executed, step.confidence)
        )
        self._actions.append(step.action)
        self._index += 1
        if segment and len(self._steps) >= self._settings.segment_steps:
            self._commit_segment()

    def _commit_segment(self) -> None:
        """Commits a full segment, except for its newest step: the episode may end with that one."""
        engine = self.engine
        done, newest = self._steps[:-1], self._steps[-1]
        if done:
            status: TrajectoryStatus = "open" if engine.learner.needs_ending else "pending"
            engine.learner.submit(self._trajectory(tuple(done), "segmented", None), status)
            self._segment += 1
            self._steps = [newest]

    def finish(self, ending: Ending, info: Mapping[str, Any]) -> None:
        """Ends the episode and hands it to the learner."""
        self._hand_over(ending, success_of(info), "pending")

    def leave(self) -> None:
        """Leaves an episode before it ended (early reset or close), as `early_reset` says."""
        if not self.running:
            return
        kept = self._settings.early_reset
        if kept == "drop" or self._index == 0:
            self.running = False
        else:
            self._hand_over("abandoned", None, "pending" if kept == "label" else "held")

    def detach(self) -> None:
        """Lets go of the engine, which is about to be closed; a later `begin` opens one anew."""
        self._engine = None

    def _hand_over(self, ending: Ending, success: bool | None, status: TrajectoryStatus) -> None:
        engine = self.engine
        self.running = False
        if not engine.read_only and self._steps:
            engine.learner.submit(self._trajectory(tuple(self._steps), ending, success), status)
        self._steps = []

    def _trajectory(self, steps: tuple[Step, ...], ending: Ending, success: bool | None) -> Trajectory:
        return Trajectory(
            episode_id=self._episode_id,
            env_id=self._settings.env_id,
            scope=self._settings.scopes[0],
            task=self._task,
            steps=steps,
            ending=ending,
            success=success,
            segment=self._segment,
            initial_reward=self._initial_reward,
            created_at=self.engine.clock(),
        )


def _step(
    assessment: Assessment,
    proposed: str,
    *,
    executed: bool = False,
    outcome: str | None = None,
    reward: float | None = None,
    propensity: float = 1.0,
    note: str = "",
) -> Step:
    query, verdict, decision = assessment.query, assessment.verdict, assessment.decision
    reason = "; ".join(part for part in (decision.reason, note) if part) if note else decision.reason
    return Step(
        index=query.step_index,
        state=query.state,
        proposed=proposed,
        action=query.action,
        outcome=outcome,
        reward=reward,
        executed=executed,
        confidence=verdict.confidence,
        decision=decision.kind,
        reason=clean_text(reason) if reason else "",
        propensity=propensity,
        repeated=query.repeated,
        critic=verdict.source,
        features=assessment.features,
        rationale=clean_text(verdict.rationale) if verdict.rationale else "",
    )


def _finite_or_none(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def success_of(info: Mapping[str, Any]) -> bool | None:
    """The environment's own verdict in the last info; None where it gives none, or none that is a bool."""
    for key in ("success", "is_success"):
        value = info.get(key)
        if isinstance(value, bool | int | float | np.bool_ | np.number) and value in (0, 1):
            return bool(value)
    return None
