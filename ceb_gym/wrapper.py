"""`ConfidenceWrapper`: a confidence with every step, before the environment is touched."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import data_equivalence

from ceb_gym.build.arguments import (
    bank_and_scopes,
    check_arguments,
    check_single,
    lane_settings,
    plain_arguments,
)
from ceb_gym.build.engines import check_config, close_engine, engine_config, open_engine
from ceb_gym.build.parts import make_policy, make_reviewer, make_summarizer
from ceb_gym.critics.recalibration import Recalibration
from ceb_gym.engine.core import Engine
from ceb_gym.engine.lane import EarlyReset, Lane
from ceb_gym.engine.learning import LearnMode
from ceb_gym.engine.ruling import Arbiter, ReviewOn, Ruling
from ceb_gym.errors import ConfigurationError, UsageError
from ceb_gym.protocols import Bank
from ceb_gym.types import Assessment, Pin

UNSCORED = -1.0
AT_RESET: dict[str, Any] = {
    "confidence": UNSCORED,
    "scored": False,
    "executed": False,
    "repeated": False,
    "decision": "none",
    "reason": "",
    "source": "",
    "productive_precedents": 0,
    "unproductive_precedents": 0,
    "deferrals": 0,
    "bank_revision": 0,
    "step_index": 0,
}
ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


class ConfidenceWrapper(
    gym.Wrapper[ObsType, ActType, ObsType, ActType],
    gym.utils.RecordConstructorArgs,
    Generic[ObsType, ActType],
):
    """Attaches the confidence of a Critic Experience Bank to every step.

    Each `step(action)` is first judged by the critic, which sees the task, a compact state, the history and
    the most similar productive and unproductive steps of earlier episodes. The confidence is in
    `info["ceb"]`; a policy may defer the action, which then reaches the environment zero times. When an
    episode ends, the labeler turns it into new records of the bank. Spaces, observations and rewards of
    executed steps are untouched.

    `info["ceb"]` has the same keys and types at every step and reset: `confidence` (float in [0, 1], -1.0
    when unscored), `scored`, `executed`, `repeated` (bool), `decision`, `reason`, `source` (str),
    `productive_precedents`, `unproductive_precedents`, `deferrals`, `bank_revision`, `step_index` (int).

    Args:
        env: Any Gymnasium environment. Critics and scopes know it by `metadata["env_id"]` where it has such
            an entry (a replay names what was recorded), else by its registered id.
        critic: Spec such as "precedent", "neighbors", "counts", "base_rate", "rules", "constant:0.7",
            "module:Class?option=1", "A | B?until=30", or a `protocols.Critic`.
        bank: Path or URL, with an optional scope template and further scopes to read:
            "bank.db?scope={env_id}/{user}&read_scopes=other", "memory:" (private), or an open `Bank`.
        labeler: "return:gamma", "success", "reward_level", "none", a callable or a labeler. Required
            unless `learn="off"`.
        policy: "never", "defer_below:x", "defer_lowest:b", "review_budget:m?below=x", joined by " | ", each
            with `explore=p` (execute a deferral anyway), `enforce=false` (record only) and `min_revision=n`
            (defer nothing while the bank is younger); or a Policy.
        reviewer: Callable or "module:function" with the last word on deferred actions.
        retriever: "tfidf", "random", "recent", or a Retriever.
        summarizer: Spec, import string or Summarizer; default: the environment's own, or "generic".
        on_critic_error: "raise", "unscored", or another critic.
        recalibrate: "isotonic", "platt" or "beta" pass the critic's scores through a monotone map learned
            from its own scores and labels in the bank, where that lowers the error on episodes left out;
            "none" leaves them, as do fewer than 50 such records, or one class. The raw score is stored.
        learn: "inline" (labelled before `step` returns), "background" (`close` waits) or "off" (read only).
        early_reset: For episodes reset before their end: "hold" (kept, not labelled), "label" or "drop".
        on_defer: Observation of a deferred step: "repeat", "append_reason" (text observations), or a
            callable of (observation, reason).
        deferred_reward: Reward of a deferred step; None means 0, and is refused once the environment has
            given a negative reward, since being deferred would then pay.
        max_deferrals: An episode with this many deferrals is truncated.
        review_on: "repeat" asks the reviewer at the second deferral of the same action in the same state,
            "every" at each.
        review_timeout_s: Seconds a reviewer may take.
        segment_steps: Longer episodes are committed in segments of this many steps.
        journal: "step" notes each step in the bank before it runs, "episode" does not.
        task: Task text where the environment states none.
        scope_fields: Values for the fields of the scope template.
        as_of: Newest revision of the scope that may be used.
        run_id: First part of episode ids; None takes one that the bank never gave before.
        seed: For exploration; a seed given to `reset` overrides it.
        clock: Returns seconds since the epoch; None means `time.time`.

    Raises:
        ConfigurationError: If an argument cannot work.

    Source: arXiv 2607.12397.
    """

    def __init__(
        self,
        env: gym.Env[ObsType, ActType],
        critic: Any = "precedent",
        bank: str | Bank = "memory:",
        labeler: Any = None,
        policy: Any = "never",
        *,
        reviewer: Any = None,
        retriever: Any = "tfidf",
        summarizer: Any = None,
        on_critic_error: Any = "raise",
        recalibrate: Recalibration = "none",
        learn: LearnMode = "inline",
        early_reset: EarlyReset = "hold",
        on_defer: str | Callable[[Any, str], Any] = "repeat",
        deferred_reward: float | None = None,
        max_deferrals: int = 20,
        review_on: ReviewOn = "repeat",
        review_timeout_s: float = 30.0,
        segment_steps: int = 500,
        journal: str = "episode",
        task: str = "",
        scope_fields: Mapping[str, str] | None = None,
        as_of: int | None = None,
        run_id: str | None = None,
        seed: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        arguments = {key: value for key, value in locals().items() if key not in ("self", "env", "__class__")}
        gym.utils.RecordConstructorArgs.__init__(self, **plain_arguments(arguments))
        check_single(env)
        gym.Wrapper.__init__(self, env)
        check_arguments(arguments)
        self._learn = learn
        self._on_defer = on_defer
        self._deferred_reward = deferred_reward
        location, scopes = bank_and_scopes(bank, env_id_of(env), scope_fields)
        self._config = engine_config(arguments, location)
        check_config(self._config)
        self._arbiter = Arbiter(
            make_policy(policy),
            make_reviewer(reviewer, review_timeout_s),
            review_on=review_on,
            max_deferrals=max_deferrals,
            seed=seed,
        )
        chosen = summarizer if summarizer is not None else (env.metadata or {}).get("summarizer")
        self._lane = Lane(
            self._open_engine,
            make_summarizer(chosen, env.observation_space, env.action_space),
            lane_settings(arguments, env_id_of(env), scopes),
        )
        self._engine: Engine | None = None
        self._ended = False
        self._saw_negative_reward = False
        self._assessed: list[tuple[Any, Assessment]] = []

    def _open_engine(self) -> Engine:
        self._engine = open_engine(self._config)
        self._give_back = weakref.finalize(self, close_engine, self._engine)
        return self._engine

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # as gym.Wrapper does over Env's attribute
        """The environment's spec with this wrapper in it; nondeterministic while the bank learns."""
        spec = super().spec
        if spec is not None and self._learn != "off":
            spec.nondeterministic = True
        return spec

    @property
    def bank(self) -> Bank:
        """The open bank."""
        return self._lane.engine.bank

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The scopes and revisions that the running (or last) episode is judged by; the own scope first."""
        return self._lane.pins

    @property
    def episode_id(self) -> str:
        """The running (or last) episode's id in the bank."""
        return self._lane.episode_id

    def flush(self) -> None:
        """Waits until all finished episodes are labelled and committed."""
        if self._engine is not None:
            self._engine.learner.flush()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Resets the environment and pins what the bank holds for the new episode."""
        self._lane.leave()
        observation, info = self.env.reset(seed=seed, options=options)
        if not isinstance(info, Mapping):
            raise UsageError(f"The environment's `reset` returned the info {info!r:.100}, which is no dict.")
        kept = self._keep(observation)
        if self._on_defer == "append_reason" and self._arbiter.blocking:
            self._check_text(observation)
        self._lane.begin(kept, self._keep_info(info), options or {})
        self._arbiter.begin_episode(seed)
        self._assessed.clear()
        self._ended = False
        block = {**AT_RESET, "bank_revision": self._lane.pins[0].revision}
        return observation, {**info, "ceb": block}

    def assess(self, action: ActType) -> Assessment:
        """Judges an action without executing it; a following `step` of the same action uses the result."""
        return self.assess_many([action])[0]

    def assess_many(self, actions: Sequence[ActType]) -> list[Assessment]:
        """Judges several actions at once, in one batch; neither quantiles nor budgets move."""
        self._require_episode("assess")
        known = [self._find_assessed(action) for action in actions]
        missing = [action for action, found in zip(actions, known, strict=True) if found is None]
        judged = iter(self._lane.judge(missing) if missing else ())
        assessments = []
        for action, found in zip(actions, known, strict=True):
            if found is None:
                found = self._arbiter.preview(next(judged))
                self._assessed.append((copy.deepcopy(action), found))
            assessments.append(found)
        return assessments

    def confidence(self, action: ActType) -> float | None:
        """The confidence of an action without executing it; None when unscored."""
        return self.assess(action).verdict.confidence

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Judges the action, then executes it, or defers it as the policy decides."""
        self._require_episode("step")
        assessment = self._find_assessed(action)
        if assessment is None:
            assessment = self._arbiter.preview(self._lane.judge([action])[0])
        if assessment.decision.kind != "execute" and self._arbiter.blocking:
            self._check_deferred_reward()
        self._assessed.clear()
        ruling = self._arbiter.rule(self._lane, action, assessment)
        return self._execute(ruling) if ruling.executes else self._defer(ruling)

    def _execute(self, ruling: Ruling) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        self._lane.journal(ruling.assessment, ruling.proposed)
        try:
            observation, reward, terminated, truncated, info = self.env.step(ruling.action)
            paid = as_number(reward)
            if not isinstance(info, Mapping):
                raise UsageError(
                    f"The environment's `step` returned the info {info!r:.100}, which is no dict."
                )
        except BaseException as error:
            self._ended = True
            self._lane.append_failed(ruling.assessment, ruling.proposed, error)
            raise
        self._saw_negative_reward = self._saw_negative_reward or paid < 0
        self._lane.append_executed(
            ruling.assessment,
            proposed=ruling.proposed,
            propensity=ruling.propensity,
            observation=self._keep(observation),
            reward=paid,
            info=self._keep_info(info),
        )
        block = self._block(ruling)
        if terminated or truncated:
            self._ended = True
            self._lane.finish("terminated" if terminated else "truncated", info)
        return observation, reward, terminated, truncated, {**info, "ceb": block}

    def _defer(self, ruling: Ruling) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        block = self._block(ruling)
        observation = copy.deepcopy(self._lane.observation)
        if callable(self._on_defer):
            observation = self._on_defer(observation, ruling.assessment.decision.reason)
        elif self._on_defer == "append_reason":
            observation = _with_reason(observation, ruling.assessment.decision.reason)
        if ruling.truncates:
            self._ended = True
            self._lane.finish("truncated", {})
        # the environment's own keys, such as an action mask, still hold: it has not moved
        info = {**copy.deepcopy(dict(self._lane.info)), "ceb": block}
        return observation, float(self._deferred_reward or 0.0), False, ruling.truncates, info

    def _block(self, ruling: Ruling) -> dict[str, Any]:
        assessment = ruling.assessment
        confidence = assessment.verdict.confidence
        return {
            "confidence": UNSCORED if confidence is None else confidence,
            "scored": confidence is not None,
            "executed": ruling.executes,
            "repeated": assessment.query.repeated,
            "decision": assessment.decision.kind,
            "reason": assessment.decision.reason,
            "source": assessment.verdict.source,
            "productive_precedents": len(assessment.precedents.productive),
            "unproductive_precedents": len(assessment.precedents.unproductive),
            "deferrals": self._arbiter.deferrals,
            "bank_revision": self._lane.pins[0].revision,
            "step_index": assessment.query.step_index,
        }

    def _keep(self, observation: Any) -> Any:
        """A copy for the next state and a deferral: agents and environments may write into their own."""
        if isinstance(observation, str | int | float | None):
            return observation
        return observation.copy() if type(observation) is np.ndarray else copy.deepcopy(observation)

    def _keep_info(self, info: Any) -> Any:
        return copy.deepcopy(dict(info)) if self._arbiter.blocking else info

    def _find_assessed(self, action: ActType) -> Assessment | None:
        for assessed, assessment in self._assessed:
            if type(assessed) is type(action) and data_equivalence(assessed, action):
                return assessment
        return None

    def _require_episode(self, call: str) -> None:
        if self._lane.running:
            return
        when = "after the episode ended" if self._ended else "before `reset`"
        raise UsageError(f"`{call}` was called {when}: call `reset` first.")

    def _check_deferred_reward(self) -> None:
        if self._deferred_reward is None and self._saw_negative_reward:
            raise ConfigurationError(
                "This environment gives negative rewards, and a deferred step would earn 0: an agent that "
                "learns from rewards would learn to be deferred. Pass deferred_reward (for example the "
                'reward of an ordinary step, -1.0), or use policy="never" and read info["ceb"]["confidence"].'
            )

    def _check_text(self, observation: Any) -> None:
        shown = _with_reason(observation, "reason.") if isinstance(observation, str) else None
        if shown is None or not self.observation_space.contains(shown):
            raise ConfigurationError(
                'on_defer="append_reason" needs a text observation space that holds any text; this one is '
                f'{self.observation_space}: use "repeat" or a callable of (observation, reason).'
            )

    def close(self) -> None:
        """Commits what is pending and closes the environment; the bank too, when nobody else uses it."""
        try:
            self._lane.leave()
            self._lane.detach()
            engine, self._engine = self._engine, None
            if engine is not None:
                self._give_back.detach()
                close_engine(engine)
        finally:
            super().close()


def env_id_of(env: gym.Env[Any, Any]) -> str:
    """What `env.metadata["env_id"]` says, else the registered id, or the name of a class without one.

    By that entry an environment that plays or serves another one names the other one, as a replay does.
    """
    stated = (env.metadata or {}).get("env_id")
    if isinstance(stated, str) and stated:
        return stated
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def as_number(reward: Any) -> float:
    """The reward as a float. Raises UsageError where it is none."""
    if type(reward) is float:
        return reward
    try:
        values = np.asarray(reward, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        values = np.empty(0)
    if values.size != 1 or reward is None:
        raise UsageError(f"The environment returned the reward {reward!r:.100}, which is no number.")
    return float(values.item())


def _with_reason(observation: str, reason: str) -> str:
    return f"{observation}\n[deferred: {reason}]"
