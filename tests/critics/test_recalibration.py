from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ceb_gym.critics.cascade import cascade
from ceb_gym.critics.recalibration import RecalibratedCritic, recalibrated
from ceb_gym.critics.simple import BaseRateCritic, ConstantCritic
from ceb_gym.errors import ConfigurationError, CriticError
from ceb_gym.types import Precedents, Query, Record, Verdict

METHODS = ("isotonic", "platt", "beta")
BY_METHOD = pytest.mark.parametrize("method", METHODS)
GRID = [place / 50 for place in range(51)]


class Says:
    """Gives each query the score that its action spells."""

    name = "says"
    k = 0

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        return [Verdict(None if query.action == "none" else float(query.action)) for query in queries]


def record(place: int, score: float | None, label: bool, critic: str = "says", **changes: Any) -> Record:
    episode = f"e{place // 4}"
    made = Record(
        record_id=f"{episode}:{place % 4}:1",
        scope="s",
        episode_id=episode,
        step_index=place % 4,
        task="task",
        state="state",
        action="act",
        outcome="outcome",
        label=label,
        vote_share=float(label),
        votes=1,
        confidence=score,
        agrees=None if score is None else (score >= 0.5) == label,
        repeated=False,
        critic=critic,
        labeler="test",
        created_at=0.0,
    )
    return replace(made, **changes)


def squeezed(count: int, seed: int = 0, **changes: Any) -> list[Record]:
    """A critic that says 0.6 + 0.3 p where p is right."""
    rng = random.Random(seed)
    chances = [rng.random() for _ in range(count)]
    return [
        record(place, 0.6 + 0.3 * chance, rng.random() < chance, **changes)
        for place, chance in enumerate(chances)
    ]


def ask(critic: Any, scores: Sequence[float | str]) -> list[Verdict]:
    queries = [Query("env", "s", 0, "e", "task", "state", str(score), (), False, 0) for score in scores]
    return list(critic.judge(queries, [Precedents()] * len(queries)))


def confidences(critic: Any, scores: Sequence[float] = GRID) -> list[Any]:
    return [verdict.confidence for verdict in ask(critic, scores)]


def fitted(method: str, records: Sequence[Record], inner: Any = None) -> RecalibratedCritic:
    return RecalibratedCritic(inner or Says(), method).fit(records)


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    pairs=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=50, max_size=80),
    asked=st.lists(st.floats(0, 1), min_size=2, max_size=20),
)
def test_any_map_is_monotone_and_stays_in_the_unit_interval(
    method: str, pairs: list[tuple[float, bool]], asked: list[float]
) -> None:
    critic = fitted(method, [record(place, *pair) for place, pair in enumerate(pairs)])
    mapped = confidences(critic, sorted(asked))
    assert all(0.0 <= confidence <= 1.0 for confidence in mapped)
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(mapped))


@settings(max_examples=40, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    pairs=st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=120),
    one_class=st.booleans(),
    label=st.booleans(),
)
def test_fewer_than_50_pairs_or_one_class_leave_scores_unchanged(
    method: str, pairs: list[tuple[float, bool]], one_class: bool, label: bool
) -> None:
    assume(one_class or len(pairs) < 50)
    labels = [label if one_class else own for _, own in pairs]
    records = [record(place, score, labels[place]) for place, (score, _) in enumerate(pairs)]
    verdicts = ask(fitted(method, records), GRID)
    assert [verdict.confidence for verdict in verdicts] == GRID
    assert all("raw_confidence" not in {**verdict.usage, **verdict.features} for verdict in verdicts)


@BY_METHOD
def test_the_50th_pair_turns_recalibration_on(method: str) -> None:
    records = [record(place, 0.9, place % 5 == 0) for place in range(50)]
    assert confidences(fitted(method, records[:49]), [0.9]) == [0.9]
    assert confidences(fitted(method, records), [0.9])[0] == pytest.approx(0.2, abs=0.05)


@BY_METHOD
def test_a_squeezed_scale_is_stretched_back(method: str) -> None:
    critic = fitted(method, squeezed(3000))
    chances = np.linspace(0.1, 0.9, 9)
    mapped = np.array(confidences(critic, list(0.6 + 0.3 * chances)))
    assert np.abs(mapped - chances).max() < 0.1


@BY_METHOD
def test_a_map_that_does_not_help_on_left_out_episodes_is_not_used(method: str) -> None:
    """The scores are the exact rates of every fifth of the episodes, so that no map can be better."""
    rates = [0.25, 0.5, 0.75] * 2
    cells = [(rate, step < 4 * rate) for rate in rates for step in range(4)]
    records = [record(place, *cells[place % len(cells)]) for place in range(5 * len(cells))]
    shuffled = [replace(each, episode_id=str(place // len(cells))) for place, each in enumerate(records)]
    assert confidences(fitted(method, shuffled)) == GRID


@BY_METHOD
@pytest.mark.parametrize("seed", range(5))
def test_a_map_never_raises_the_brier_score_of_the_records_it_was_learned_from(
    method: str, seed: int
) -> None:
    rng = random.Random(seed)
    chances = [rng.choice([0.2, 0.5, 0.8]) for _ in range(60)]
    records = [record(place, chance, rng.random() < chance) for place, chance in enumerate(chances)]
    mapped = dict(zip([0.2, 0.5, 0.8], confidences(fitted(method, records), [0.2, 0.5, 0.8]), strict=True))
    assert brier(records, mapped.__getitem__) <= brier(records, lambda score: score)


def brier(records: Sequence[Record], score: Callable[[float], float]) -> float:
    return float(np.mean([(score(each.confidence or 0.0) - each.label) ** 2 for each in records]))


@BY_METHOD
def test_episodes_are_left_out_whole(method: str) -> None:
    """Each of two episodes has one score and one label: other steps of it would give its labels away."""
    records = [record(place, 0.55 if place < 30 else 0.45, place < 30) for place in range(60)]
    whole = [replace(each, episode_id=str(each.label)) for each in records]
    assert confidences(fitted(method, whole)) == GRID
    assert confidences(fitted(method, records)) != GRID


def test_one_episode_alone_leaves_scores_unchanged() -> None:
    records = [replace(each, episode_id="e") for each in squeezed(200)]
    assert confidences(fitted("isotonic", records)) == GRID


@BY_METHOD
def test_records_of_other_critics_and_unscored_ones_never_count(method: str) -> None:
    own = squeezed(200)
    others = squeezed(400, seed=1, critic="somebody") + [record(place, None, True) for place in range(400)]
    inverted = [replace(each, label=not each.label) for each in others]
    assert confidences(fitted(method, others)) == GRID
    assert confidences(fitted(method, own + inverted)) == confidences(fitted(method, own))


@BY_METHOD
def test_the_stored_raw_score_counts_where_there_is_one(method: str) -> None:
    own = squeezed(200)
    banked = [
        replace(each, confidence=0.123, features={"raw_confidence": each.confidence or 0.0}) for each in own
    ]
    assert confidences(fitted(method, banked)) == confidences(fitted(method, own))


def test_a_stored_raw_score_that_is_none_does_not_count() -> None:
    strange = [
        replace(each, features={"raw_confidence": value})
        for each, value in zip(squeezed(60), [7.0, -1.0, float("nan")] * 20, strict=True)
    ]
    assert confidences(fitted("isotonic", strange)) == GRID
    assert confidences(fitted("isotonic", squeezed(200) + strange)) == confidences(
        fitted("isotonic", squeezed(200))
    )


@BY_METHOD
def test_a_mapped_verdict_carries_the_raw_score_and_keeps_the_rest(method: str) -> None:
    class Explains(Says):
        def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
            return [Verdict(0.7, "why", usage={"tokens": 3.0}, features={"length": 5.0})] * len(queries)

    verdict = ask(fitted(method, squeezed(300), Explains()), [0.0])[0]
    assert verdict.confidence != 0.7
    assert (verdict.rationale, verdict.source) == ("why", "says")
    assert verdict.usage == {"tokens": 3.0, "raw_confidence": 0.7}
    assert verdict.features == {"length": 5.0, "raw_confidence": 0.7}


def test_unscored_stays_unscored() -> None:
    verdict = ask(fitted("platt", squeezed(300)), ["none"])[0]
    assert (verdict.confidence, verdict.usage) == (None, {})


@BY_METHOD
def test_a_batch_is_scored_as_its_members_are_alone(method: str) -> None:
    critic = fitted(method, squeezed(300))
    assert confidences(critic) == [confidences(critic, [score])[0] for score in GRID]


@BY_METHOD
def test_the_same_records_give_the_same_map(method: str) -> None:
    records = squeezed(300)
    once = fitted(method, records)
    assert confidences(once) == confidences(fitted(method, records)) == confidences(once.fit(records))


def test_a_learning_critic_learns_and_is_then_recalibrated() -> None:
    records = [record(place, 0.9, place % 4 == 0, critic="base_rate") for place in range(80)]
    plain = ask(BaseRateCritic().fit(records), [0.0])[0]
    verdict = ask(fitted("isotonic", records, BaseRateCritic()), [0.0])[0]
    assert (verdict.usage["raw_confidence"], verdict.rationale) == (plain.confidence, plain.rationale)
    assert verdict.confidence == pytest.approx(0.25)


def test_each_critic_of_a_cascade_has_a_map_of_its_own() -> None:
    class Fails(ConstantCritic):
        def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
            raise TimeoutError

    first, second = ConstantCritic(0.9), ConstantCritic(0.8)
    records = [record(place, 0.9, place % 2 == 0, critic="constant:0.9") for place in range(80)]
    records += [record(place, 0.8, place % 10 == 0, critic="constant:0.8") for place in range(80)]
    both = fitted("isotonic", records, cascade(first, second))
    fallen_back = fitted("isotonic", records, cascade(Fails(0.9), second))
    assert confidences(both, [0.0]) == [pytest.approx(0.5)]
    assert confidences(fallen_back, [0.0]) == [pytest.approx(0.1)]


def test_a_critic_recalibrated_within_a_cascade_is_not_mapped_twice() -> None:
    records = squeezed(300)
    within = fitted("platt", records, cascade(RecalibratedCritic(Says(), "platt"), ConstantCritic(0.5)))
    assert confidences(within) == confidences(fitted("platt", records))


@pytest.mark.parametrize(
    "answer", [[Verdict(1.5)], [Verdict(float("nan"))], [], ["0.5"]], ids=["above 1", "NaN", "none", "text"]
)
def test_what_is_no_verdict_is_refused_before_it_is_mapped(answer: Any) -> None:
    class Answers(Says):
        def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
            return list(answer)

    with pytest.raises(CriticError, match="Critic says"):
        ask(fitted("beta", squeezed(100), Answers()), [0.5])


def test_a_fit_that_returns_no_critic_is_refused() -> None:
    class Forgets(BaseRateCritic):
        def fit(self, records: Sequence[Record], previous: Any = None) -> Any:
            return None

    with pytest.raises(CriticError, match="base_rate returned None from `fit`"):
        fitted("beta", [], Forgets())


def test_none_returns_the_critic_itself() -> None:
    critic = Says()
    assert recalibrated(critic, "none") is critic


@pytest.mark.parametrize("method", ["", "Platt", "none", "temperature"])
def test_an_unknown_method_is_refused_with_the_valid_ones(method: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{method}': choose one of isotonic, platt, beta"):
        RecalibratedCritic(Says(), method)


def test_recalibrating_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="recalibrated by platt already"):
        recalibrated(RecalibratedCritic(Says(), "platt"), "beta")
