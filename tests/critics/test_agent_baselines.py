from __future__ import annotations

import copy
import math
import pickle

import gymnasium as gym
import pytest

from ceb_gym.build.parts import make_critic
from ceb_gym.critics.agent_baselines import token_entropy
from ceb_gym.types import AgentTrace, Precedents, Query, SampledAction, TokenLogprob, TracedAction, Verdict

HALF, QUARTER = math.log(0.5), math.log(0.25)


def judged(name: str, trace: AgentTrace | None, action: str = "ls") -> Verdict:
    query = Query("env", "s", 0, "e", "task", "state", action, (), False, 0, trace)
    (verdict,) = make_critic(name).judge([query], [Precedents()])
    assert verdict.source == name
    return verdict


def token(logprob: float | None, *top: float, is_end: bool = False) -> TokenLogprob:
    return TokenLogprob("a", logprob, tuple((chr(97 + i), value) for i, value in enumerate(top)), is_end)


def test_ppl_is_one_over_the_perplexity_of_the_written_tokens() -> None:
    trace = AgentTrace((token(HALF), token(QUARTER * 2), token(-0.1, is_end=True)))
    assert judged("ppl", trace).confidence == pytest.approx(math.exp((HALF + 2 * QUARTER) / 2))


@pytest.mark.parametrize("name", ["ppl", "mean_entropy"])
def test_a_token_without_numbers_leaves_the_step_unscored(name: str) -> None:
    verdict = judged(name, AgentTrace((token(HALF, HALF, HALF), token(None))))
    assert verdict.confidence is None and "1 of 2 tokens" in verdict.rationale


@pytest.mark.parametrize("name", ["ppl", "mean_entropy"])
@pytest.mark.parametrize("logprob", [-math.inf, math.inf, math.nan])
def test_a_token_without_a_finite_number_leaves_the_step_unscored(name: str, logprob: float) -> None:
    assert judged(name, AgentTrace((token(HALF, HALF, HALF), token(logprob, logprob)))).confidence is None


def test_a_token_of_no_measurable_probability_is_scored_and_does_not_overflow() -> None:
    trace = AgentTrace((token(-9999.0, HALF, HALF),))  # what some servers write for -Infinity
    assert judged("ppl", trace).confidence == 0.0
    assert judged("mean_entropy", trace).confidence == pytest.approx(0.5)


def test_alternatives_without_any_probability_are_no_certainty() -> None:
    assert token_entropy(token(-9999.0, -9999.0)) is None


def test_the_mass_that_alternatives_leave_is_one_bucket() -> None:
    assert token_entropy(token(HALF, HALF, QUARTER)) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))
    assert token_entropy(token(HALF, HALF, HALF)) == pytest.approx(math.log(2))
    assert token_entropy(token(0.0, 0.0)) == 0.0
    assert token_entropy(token(HALF)) is None


def test_the_written_token_counts_where_it_is_no_alternative() -> None:
    written = TokenLogprob("z", QUARTER, (("a", HALF),))
    assert token_entropy(written) == pytest.approx(0.5 * math.log(2) + 2 * 0.25 * math.log(4))


def test_mean_entropy_is_the_exponential_of_the_mean() -> None:
    trace = AgentTrace((token(HALF, HALF, HALF), token(0.0, 0.0)))
    assert judged("mean_entropy", trace).confidence == pytest.approx(math.exp(-math.log(2) / 2))


def test_pro_merges_samples_of_the_same_action() -> None:
    samples = (SampledAction("ls", HALF), SampledAction("ls", QUARTER), SampledAction("pwd", QUARTER))
    assert judged("pro", AgentTrace(samples=samples)).confidence == pytest.approx(0.75)
    assert judged("pro", AgentTrace(samples=samples), "pwd").confidence == pytest.approx(0.25)


def test_pro_of_very_improbable_sequences_is_still_a_share() -> None:
    samples = (SampledAction("ls", -5000.0), SampledAction("pwd", -5000.0 + math.log(3)))
    assert judged("pro", AgentTrace(samples=samples)).confidence == pytest.approx(0.25)


@pytest.mark.parametrize(
    "samples",
    [
        (),
        (SampledAction("ls", -1.0),),
        (SampledAction("pwd", -1.0), SampledAction("cd", -1.0)),
        (SampledAction("ls", -1.0), SampledAction("pwd", -math.inf)),
    ],
    ids=["none", "one", "other", "inf"],
)
def test_pro_without_a_usable_sample_is_unscored(samples: tuple[SampledAction, ...]) -> None:
    assert judged("pro", AgentTrace(samples=samples)).confidence is None


@pytest.mark.parametrize(
    ("stated", "score"), [(0.7, 0.7), (0.0, 0.0), (None, None), (1.2, None), (math.nan, None)]
)
def test_verbalized_is_what_the_agent_stated(stated: float | None, score: float | None) -> None:
    assert judged("verbalized", AgentTrace(stated_confidence=stated)).confidence == score


@pytest.mark.parametrize("name", ["ppl", "mean_entropy", "pro", "verbalized"])
@pytest.mark.parametrize("trace", [None, AgentTrace()], ids=["no trace", "empty trace"])
def test_without_a_trace_a_step_is_unscored(name: str, trace: AgentTrace | None) -> None:
    verdict = judged(name, trace)
    assert verdict.confidence is None and verdict.rationale.startswith("unscored: ")


def test_a_traced_action_is_a_plain_string_wherever_it_goes() -> None:
    trace = AgentTrace((token(HALF),), 0.5)
    action = TracedAction("ls -l", trace)
    assert action == "ls -l" and gym.spaces.Text(10, charset="ls -").contains(action)
    for copied in (copy.copy(action), copy.deepcopy(action), pickle.loads(pickle.dumps(action))):
        assert copied == action and copied.trace == trace
