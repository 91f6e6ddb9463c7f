from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from wrapper_parts import ScriptedTextEnv, TableCritic

from ceb_gym import ConfidenceWrapper, Verdict
from ceb_gym.errors import ConfigurationError, CriticError

EVERYTHING: dict[str, Any] = {
    "critic": "neighbors?k=3",
    "bank": "memory:",
    "labeler": "return:0.9",
    "policy": "defer_below:0.2?explore=0.5",
    "retriever": "recent",
    "summarizer": "generic?state_chars=300",
    "on_critic_error": "unscored",
    "recalibrate": "beta",
    "learn": "background",
    "early_reset": "label",
    "on_defer": "repeat",
    "deferred_reward": -1.0,
    "max_deferrals": 7,
    "review_on": "every",
    "review_timeout_s": 2.5,
    "segment_steps": 50,
    "journal": "step",
    "task": "balance the pole",
    "scope_fields": {"user": "ann"},
    "as_of": 3,
    "run_id": "r",
    "seed": 5,
}


def wrapper_arguments(spec: EnvSpec) -> dict[str, Any]:
    return dict(spec.additional_wrappers[-1].kwargs or {})


def test_spec_round_trip_keeps_every_argument() -> None:
    env = ConfidenceWrapper(gym.make("CartPole-v1"), **EVERYTHING)
    again = gym.make(env.spec)
    assert isinstance(again, ConfidenceWrapper)
    assert wrapper_arguments(again.spec) == wrapper_arguments(env.spec)
    assert {key: wrapper_arguments(env.spec)[key] for key in EVERYTHING} == EVERYTHING
    again.reset(seed=0)
    assert again.step(0)[4]["ceb"]["source"] == "neighbors"
    again.close()


def test_spec_survives_json() -> None:
    env = ConfidenceWrapper(gym.make("CartPole-v1"), **EVERYTHING)
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert wrapper_arguments(again.spec) == wrapper_arguments(env.spec)


@pytest.mark.parametrize("argument", ["critic", "labeler", "policy", "reviewer", "retriever", "summarizer"])
def test_rebuilding_with_an_object_names_the_argument_to_pass(argument: str) -> None:
    arguments = {"critic": "counts", "labeler": "return:0.9", argument: "<object>"}
    with pytest.raises(ConfigurationError, match=rf"pass {argument}=\.\.\. again"):
        ConfidenceWrapper(ScriptedTextEnv(), **arguments)


def test_an_object_is_recorded_as_a_marker() -> None:
    env = ConfidenceWrapper(gym.make("CartPole-v1"), critic=TableCritic(), labeler=lambda trajectory: [])
    kwargs = wrapper_arguments(env.spec)
    assert (kwargs["critic"], kwargs["labeler"]) == ("<object>", "<object>")
    with pytest.raises(ConfigurationError, match=r"pass critic=\.\.\. again"):
        gym.make(env.spec)


def test_spec_is_nondeterministic_only_while_the_bank_learns() -> None:
    learning = ConfidenceWrapper(gym.make("CartPole-v1"), critic="counts", labeler="return:0.9")
    fixed = ConfidenceWrapper(gym.make("CartPole-v1"), critic="counts", learn="off")
    assert (learning.spec.nondeterministic, fixed.spec.nondeterministic) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"critic": "nonsense"}, "no critic 'nonsense': choose one of base_rate"),
        ({"critic": "neighbors?q=3"}, "has no option 'q': it takes k, prior_weight, power"),
        ({"critic": "neighbors?k=0"}, "k is 0"),
        ({"critic": "os:path"}, "lacks `name`"),
        ({"labeler": "return:2"}, "gamma is 2"),
        ({"policy": "defer_below:3"}, "threshold of defer_below is 3"),
        ({"policy": "defer_below"}, "needs threshold"),
        ({"reviewer": "not_a_path"}, "package.module:function"),
        ({"learn": "sometimes"}, "learn is 'sometimes'"),
        ({"early_reset": "keep"}, "early_reset is 'keep'"),
        ({"on_defer": "shout"}, "on_defer is 'shout'"),
        ({"max_deferrals": 0}, "max_deferrals is 0"),
        ({"segment_steps": 1.5}, "segment_steps is 1.5"),
        ({"as_of": -1}, "as_of is -1"),
        ({"deferred_reward": math.nan}, "deferred_reward is nan"),
        ({"review_timeout_s": 0}, "review_timeout_s is 0"),
        ({"bank": "memory:?scope={user}"}, "cannot be filled in"),
        ({"on_critic_error": "ignore"}, "no critic 'ignore'"),
        ({"journal": "all"}, "journal is 'all'"),
        ({"recalibrate": "sigmoid"}, "recalibrate is 'sigmoid': choose one of isotonic, platt, beta, none"),
        ({"clock": 5}, "clock is 5"),
    ],
)
def test_a_wrong_argument_fails_in_the_constructor_with_its_value(
    arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        ConfidenceWrapper(ScriptedTextEnv(), **{"critic": "counts", "labeler": "return:0.9", **arguments})
    assert sentence in str(error.value)


class Answers:
    name = "answers"
    k = 0

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def judge(self, queries: Any, precedents: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


BROKEN = pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([Verdict(1.2)], "1.2"),
        ([Verdict(math.nan)], "nan"),
        ([Verdict("high")], "'high'"),
        ([], "0 verdicts for 1 queries"),
        ([Verdict(0.5)] * 2, "2 verdicts for 1 queries"),
        ([0.5], "no Verdict"),
        (TimeoutError("too slow"), "TimeoutError: too slow"),
    ],
    ids=["above 1", "NaN", "text", "too few", "too many", "a number", "raises"],
)


@BROKEN
def test_critic_failure_raises_before_the_environment_is_touched(answer: Any, sentence: str) -> None:
    inner = ScriptedTextEnv()
    env = ConfidenceWrapper(inner, critic=Answers(answer), labeler="none")
    env.reset()
    with pytest.raises(CriticError) as error:
        env.step("a")
    assert sentence in str(error.value) and inner.arrived == []
    env.unwrapped.reset()
    env._config.critic.answer = [Verdict(0.5)]
    assert env.step("a")[4]["ceb"]["confidence"] == 0.5
    env.close()


@BROKEN
def test_critic_failure_can_leave_the_step_unscored(answer: Any, sentence: str) -> None:
    env = ConfidenceWrapper(
        ScriptedTextEnv(), critic=Answers(answer), labeler="reward_level", on_critic_error="unscored"
    )
    env.reset()
    block = env.step("a")[4]["ceb"]
    assert (block["scored"], block["confidence"], block["executed"]) == (False, -1.0, True)
    env.step("b")
    env.step("c")
    steps = env.bank.episode(env.episode_id).steps
    assert sentence in steps[0].rationale
    assert [record.confidence for record in env.bank.records("ScriptedTextEnv")] == [None] * 3
    env.close()


@BROKEN
def test_critic_failure_can_be_answered_by_another_critic(answer: Any, sentence: str) -> None:
    env = ConfidenceWrapper(
        ScriptedTextEnv(), critic=Answers(answer), labeler="none", on_critic_error="constant:0.25"
    )
    env.reset()
    block = env.step("a")[4]["ceb"]
    assert (block["confidence"], block["source"]) == (0.25, "constant:0.25")
    env.close()
