"""Runs an agent under a `ConfidenceWrapper` and keeps a row per judged step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import gymnasium as gym

from ceb_gym.agents.basic import Agent, FunctionAgent
from ceb_gym.engine.judging import Judge
from ceb_gym.engine.lane import success_of
from ceb_gym.errors import ConfigurationError
from ceb_gym.evaluation.given import GivenLabels, Labels, reference_labels_of, require_reference_labels
from ceb_gym.protocols import Critic
from ceb_gym.retrieval.simple import RecentRetriever
from ceb_gym.types import Assessment
from ceb_gym.wrapper import ConfidenceWrapper

RAW: Final = "critic_raw"


@dataclass(slots=True)
class StepRow:
    """One judged step.

    Attributes:
        episode: Number of the episode in this run, from 0.
        step_index: Position in the episode, from 0.
        confidence: By estimator name ("critic" is the wrapper's own); None when unscored. "critic_raw" is the
            critic's before recalibration; it is there when any step of the run was recalibrated.
        label: The label it is evaluated against; None when unlabelled or not executed.
    """

    episode: int
    step_index: int
    task: str
    action: str
    confidence: dict[str, float | None]
    executed: bool
    decision: str
    reason: str
    repeated: bool
    productive_precedents: int
    unproductive_precedents: int
    bank_revision: int
    reward: float | None
    label: bool | None = None


@dataclass(slots=True)
class EpisodeRow:
    """One episode: sum of rewards, number of executed steps and deferrals, how it ended.

    Attributes:
        success: The environment's own verdict, from `info["success"]` or `info["is_success"]` at the end;
            None where it gives none.
        source: The run that the episode is a part of; None where it is a run of its own.
    """

    episode: int
    episode_id: str
    total_reward: float
    n_executed: int
    n_deferrals: int
    terminated: bool
    success: bool | None = None
    source: str | None = None


@dataclass(slots=True)
class RolloutResult:
    """What a run gave.

    Attributes:
        labels_from: "reference" (the environment's reference labels), "bank" (the labels that the bank's
            labeler gave) or "none".
        interrupted: Whether Ctrl-C ended the run early; what was done until then is kept.
    """

    steps: list[StepRow] = field(default_factory=list)
    episodes: list[EpisodeRow] = field(default_factory=list)
    labels_from: str = "none"
    interrupted: bool = False


def find_wrapper(env: gym.Env[Any, Any]) -> ConfidenceWrapper[Any, Any]:
    """Returns the outermost ConfidenceWrapper of an environment."""
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, ConfidenceWrapper):
            return layer
        layer = layer.env
    raise ConfigurationError("rollout needs an environment with a ConfidenceWrapper around it.")


def rollout(
    env: gym.Env[Any, Any],
    agent: Agent | Callable[[Any, Mapping[str, Any]], Any],
    episodes: int,
    *,
    seed: int | None = None,
    estimators: Mapping[str, Critic] | None = None,
    on_step: Callable[[StepRow], None] | None = None,
    on_episode: Callable[[EpisodeRow], None] | None = None,
    learn_given: bool = False,
    sources: Mapping[str, str] | None = None,
) -> RolloutResult:
    """Runs episodes and judges each proposed action by the wrapper's critic and by further estimators.

    Args:
        env: Has a ConfidenceWrapper around it.
        agent: An Agent, or a function of observation and info.
        episodes: How many, at least 1.
        seed: Given to the first reset.
        estimators: Critics that judge the same queries at the same pinned revisions, without precedents.
        on_step: Called after each step.
        on_episode: Called after each episode.
        learn_given: Whether the bank learns from the environment's own reference labels, an oracle. The
            wrapper's labeler must be "none".
        sources: The run that an episode is a part of, by the id in `info["episode"]`: such episodes are
            resampled together, and `learn_given` labels them when the last of them was played.

    Returns:
        Rows of steps with labels, and of episodes. Ctrl-C ends the run and keeps the finished episodes.
    """
    if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
        raise ConfigurationError(f"episodes is {episodes!r}: give a whole number of at least 1.")
    wrapper = find_wrapper(env)
    acting = agent if isinstance(agent, Agent) else FunctionAgent(agent)
    given = GivenLabels(sources or {}) if learn_given else None
    if given is not None:
        require_reference_labels(env)
    run = _Run(env, wrapper, acting, estimators or {}, on_step, given, sources or {})
    try:
        for number in range(episodes):
            episode = run.play(number, seed if number == 0 else None)
            if on_episode is not None:
                on_episode(episode)
    except KeyboardInterrupt:
        run.result.interrupted = True
    run.finish()
    return run.result


@dataclass(slots=True)
class _Run:
    """A run under way: what it is played with, and what it gave so far."""

    env: gym.Env[Any, Any]
    wrapper: ConfidenceWrapper[Any, Any]
    agent: Agent
    estimators: Mapping[str, Critic]
    on_step: Callable[[StepRow], None] | None
    given: GivenLabels | None
    sources: Mapping[str, str]
    result: RolloutResult = field(default_factory=RolloutResult)
    shadows: dict[str, Judge] = field(default_factory=dict)

    def play(self, number: int, seed: int | None) -> EpisodeRow:
        """Plays an episode; it counts only when all of it was played."""
        observation, info = self.env.reset(seed=seed)
        recorded_id = str(info.get("episode", ""))
        if not self.shadows:  # the bank is open since the first reset
            bank = self.wrapper.bank
            self.shadows = {
                name: Judge(bank, RecentRetriever(bank), critic, "raise")
                for name, critic in self.estimators.items()
            }
        self.agent.begin(self.env)
        episode = EpisodeRow(number, self.wrapper.episode_id, 0.0, 0, 0, False)
        episode.source = self.sources.get(recorded_id)
        rows = self._steps(episode, observation, info)
        labels = _add_reference_labels(self.env, rows, self.result)
        self.result.steps.extend(rows)
        self.result.episodes.append(episode)
        if self.given is not None:
            self.given.episode_ended(self.wrapper.bank, episode.episode_id, recorded_id, labels)
        return episode

    def _steps(self, episode: EpisodeRow, observation: Any, info: Mapping[str, Any]) -> list[StepRow]:
        rows: list[StepRow] = []
        terminated = truncated = False
        while not (terminated or truncated):
            action = self.agent.act(observation, info)
            assessment = self.wrapper.assess(action)
            confidences = self._confidences(assessment)
            observation, reward, terminated, truncated, info = self.env.step(action)
            row = _row(episode.episode, assessment, confidences, info["ceb"], float(reward))
            rows.append(row)
            if self.on_step is not None:
                self.on_step(row)
            episode.total_reward += float(reward)
            episode.n_executed += row.executed
            episode.n_deferrals = info["ceb"]["deferrals"]
        episode.terminated = bool(terminated)
        episode.success = success_of(info)
        return rows

    def _confidences(self, assessment: Assessment) -> dict[str, float | None]:
        """By estimator, at the same pins."""
        confidences = {"critic": assessment.verdict.confidence}
        if "raw_confidence" in assessment.verdict.usage:
            confidences[RAW] = float(assessment.verdict.usage["raw_confidence"])
        for name, judge in self.shadows.items():
            verdict, _ = judge.judge([assessment.query], [self.wrapper.pins])[0]
            confidences[name] = verdict.confidence
        return confidences

    def finish(self) -> None:
        """Labels what waits for labels, and fills in what rows lack."""
        result = self.result
        if self.given is not None and result.episodes:
            self.given.finish(self.wrapper.bank)
        if result.labels_from != "reference" and result.steps:
            _add_bank_labels(self.wrapper, result)
        _complete_raw_confidences(result)


def _row(
    number: int,
    assessment: Assessment,
    confidences: dict[str, float | None],
    block: Mapping[str, Any],
    reward: float,
) -> StepRow:
    query = assessment.query
    return StepRow(
        episode=number,
        step_index=query.step_index,
        task=query.task,
        action=query.action,
        confidence=confidences,
        executed=block["executed"],
        decision=block["decision"],
        reason=block["reason"],
        repeated=query.repeated,
        productive_precedents=len(assessment.precedents.productive),
        unproductive_precedents=len(assessment.precedents.unproductive),
        bank_revision=query.revision,
        reward=reward if block["executed"] else None,
    )


def _add_reference_labels(
    env: gym.Env[Any, Any], rows: Sequence[StepRow], result: RolloutResult
) -> Labels | None:
    """Fills in the environment's reference labels, if it has any, and returns them."""
    labels = reference_labels_of(env)
    for row, label in zip((row for row in rows if row.executed), labels or (), strict=False):
        row.label = label
    if any(label is not None for label in labels or ()):
        result.labels_from = "reference"
    return labels


def _complete_raw_confidences(result: RolloutResult) -> None:
    """Gives every step a raw confidence where any has one: what was not recalibrated is raw itself."""
    if not any(RAW in row.confidence for row in result.steps):
        return
    for row in result.steps:
        others = {name: value for name, value in row.confidence.items() if name not in ("critic", RAW)}
        own = row.confidence["critic"]
        row.confidence = {"critic": own, RAW: row.confidence.get(RAW, own), **others}


def _add_bank_labels(wrapper: ConfidenceWrapper[Any, Any], result: RolloutResult) -> None:
    """Fills in the pseudo-labels that the bank holds of this run's episodes."""
    wrapper.flush()
    scope = wrapper.pins[0].scope
    labels = {
        (record.episode_id, record.step_index): record.label
        for record in wrapper.bank.records(scope, since=result.steps[0].bank_revision)
    }
    names = {episode.episode: episode.episode_id for episode in result.episodes}
    for row in result.steps:
        row.label = labels.get((names[row.episode], row.step_index))
        if row.label is not None:
            result.labels_from = "bank"
