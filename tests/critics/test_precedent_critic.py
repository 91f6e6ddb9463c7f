from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from ceb_gym.build.parts import make_critic
from ceb_gym.critics.precedent import PrecedentCritic
from ceb_gym.errors import ConfigurationError
from ceb_gym.features import FEATURES_VERSION, VERSION_KEY, feature_groups, is_repeated, query_features
from ceb_gym.types import HistoryItem, Precedent, Precedents, Query, Record, Verdict


def make_query(action: str, earlier: list[str] | None = None, outcome: str = "fine") -> Query:
    history = tuple(HistoryItem("s", before, outcome, True, None) for before in earlier or [])
    repeated = is_repeated(action, earlier or [])
    return Query("env", "scope", 0, "now", "find the file", "s", action, history, repeated, len(history))


def make_record(number: int, query: Query, label: bool, *, stored: bool = True) -> Record:
    features = query_features(query, Precedents(), "precedent") if stored else {}
    return Record(
        record_id=f"e{number}:{query.step_index}:1",
        scope="scope",
        episode_id=f"e{number}",
        step_index=query.step_index,
        task=query.task,
        state=query.state,
        action=query.action,
        outcome="fine",
        label=label,
        vote_share=float(label),
        votes=0,
        confidence=None,
        agrees=None,
        repeated=False,
        critic="precedent",
        labeler="test",
        created_at=0.0,
        features=features,
    )


def looping_records(count: int, *, stored: bool = True) -> list[Record]:
    """First steps are productive; later ones are, unless they repeat the action before."""
    rng = random.Random(1)
    records = []
    for number in range(count):
        records.append(make_record(number, make_query("find ."), True, stored=stored))
        again = rng.random() < 0.5
        second = make_query("find ." if again else "grep -r word src", ["find ."])
        records.append(make_record(number, second, not again, stored=stored))
    return records


def confidence(critic: object, query: Query) -> float:
    (verdict,) = critic.judge([query], [Precedents()])  # type: ignore[attr-defined]
    assert isinstance(verdict, Verdict) and verdict.confidence is not None
    return verdict.confidence


def test_an_empty_bank_gives_one_half() -> None:
    assert confidence(PrecedentCritic(), make_query("ls")) == 0.5
    assert confidence(PrecedentCritic().fit([]), make_query("ls")) == 0.5


def test_a_scope_with_three_records_gives_the_rates_of_first_and_later_steps() -> None:
    records = [*looping_records(1), make_record(2, make_query("ls"), True)]
    critic = PrecedentCritic().fit(records)
    assert confidence(critic, make_query("ls")) > 0.8
    assert 0 < confidence(critic, make_query("ls", ["ls"])) < 1


@pytest.mark.parametrize("label", [True, False])
def test_one_class_only_gives_its_smoothed_rate(label: bool) -> None:
    records = [make_record(number, make_query("ls"), label) for number in range(40)]
    value = confidence(PrecedentCritic().fit(records), make_query("ls"))
    assert (value > 0.95) if label else (value < 0.05)
    assert 0 < value < 1


@pytest.mark.parametrize("stored", [True, False], ids=["stored features", "refitted from text"])
def test_it_learns_that_repeating_does_not_help(stored: bool) -> None:
    critic = PrecedentCritic().fit(looping_records(60, stored=stored))
    assert critic.refitted_from_text == (0 if stored else 120)
    again = confidence(critic, make_query("find .", ["find ."]))
    other = confidence(critic, make_query("grep -r word src", ["find ."]))
    assert again < 0.25 and other > 0.75


def test_features_of_a_newer_version_are_computed_anew_from_text() -> None:
    newer = [
        replace(record, features={VERSION_KEY: FEATURES_VERSION + 1.0, "nonsense": 5.0})
        for record in looping_records(60)
    ]
    critic = PrecedentCritic().fit(newer)
    assert critic.refitted_from_text == 120
    assert confidence(critic, make_query("find .", ["find ."])) < 0.25


def test_the_rationale_names_the_two_strongest_reasons() -> None:
    critic = PrecedentCritic().fit(looping_records(60))
    (verdict,) = critic.judge([make_query("find .", ["find ."])], [Precedents()])
    assert verdict.rationale.count("lowers by") == 2


def test_the_features_travel_with_the_verdict() -> None:
    (verdict,) = PrecedentCritic().judge([make_query("ls")], [Precedents()])
    assert verdict.features == query_features(make_query("ls"), Precedents(), "precedent")


def test_what_is_learned_depends_on_the_records_alone() -> None:
    records = looping_records(40)
    query = make_query("grep -r word src", ["find ."])
    first, second = (PrecedentCritic().fit(records) for _ in range(2))
    assert confidence(first, query) == confidence(second, query)


def test_contradictory_labels_on_identical_records_stay_in_the_middle() -> None:
    records = [make_record(number, make_query("ls", ["pwd"]), number % 2 == 0) for number in range(80)]
    assert confidence(PrecedentCritic().fit(records), make_query("ls", ["pwd"])) == pytest.approx(
        0.5, abs=0.05
    )


@pytest.mark.parametrize("action", ["", "x" * 1_000_000, "\ufffd" * 50, "'\"|>" * 1000])
def test_hostile_actions_are_judged(action: str) -> None:
    critic = PrecedentCritic().fit(looping_records(30))
    value = confidence(critic, make_query(action, [action, "ls"], outcome=""))
    assert 0 < value < 1


def test_all_features_are_finite_numbers() -> None:
    for query in (make_query(""), make_query("a" * 10_000, ["", "b"], ""), make_query("ls", ["ls"] * 16)):
        assert all(math.isfinite(value) for value in query_features(query, Precedents(), "c").values())


def test_precedents_are_left_out_where_they_do_not_predict() -> None:
    assert not PrecedentCritic().fit(looping_records(60)).uses_precedents
    assert PrecedentCritic(precedents=True).fit(looping_records(60)).uses_precedents


def test_precedents_are_used_where_only_they_predict() -> None:
    rng = random.Random(2)
    records = []
    for number in range(200):
        label = rng.random() < 0.5
        record = make_record(number, make_query("go on", ["x"]), label)
        near = 0.9 if label else 0.1
        records.append(replace(record, features={**record.features, "near_productive": near}))
    assert PrecedentCritic().fit(records).uses_precedents


@pytest.mark.parametrize("options", [{"k": 0}, {"k": True}, {"precedents": "sometimes"}])
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        PrecedentCritic(**options)  # type: ignore[arg-type]


def test_groups_of_features_can_be_left_out() -> None:
    critic = make_critic("precedent?without=loops,outcomes&precedents=false")
    assert "step_index" in critic._plain_names
    assert not set(critic._plain_names) & set(feature_groups()["loops"] + feature_groups()["outcomes"])


@pytest.mark.parametrize("without", ["precedent", "position,action,loops,outcomes", 3])
def test_an_unknown_group_or_no_features_at_all_is_refused(without: object) -> None:
    with pytest.raises(ConfigurationError, match="without"):
        PrecedentCritic(without=without)  # type: ignore[arg-type]


class Oracle:
    """Scores "go on" by the state it sees; says nothing of other actions."""

    name = "oracle"
    k = 2

    def __init__(self) -> None:
        self.shown: list[Precedents] = []

    def judge(self, queries: list[Query], precedents: list[Precedents]) -> list[Verdict]:
        self.shown.extend(precedents)
        scores = {"good": 0.9, "bad": 0.2}
        return [Verdict(scores.get(query.state), "", "oracle", {"requests": 1.0}) for query in queries]


def scored_record(number: int, label: bool) -> Record:
    record = make_record(number, make_query("go on", ["x"]), label)
    score = 0.9 if label else 0.2
    return replace(record, features={**record.features, "scorer_score": score, "scorer_scored": 1.0})


def test_a_scorers_score_is_one_more_feature() -> None:
    critic = PrecedentCritic(scorer=Oracle()).fit([scored_record(n, n % 3 == 0) for n in range(90)])
    good, bad = (replace(make_query("go on", ["x"]), state=state) for state in ("good", "bad"))
    assert confidence(critic, good) > 0.8 > 0.3 > confidence(critic, bad)
    (verdict,) = critic.judge([good], [Precedents()])
    assert verdict.features["scorer_score"] == 0.9 and verdict.usage == {"requests": 1.0}


def test_a_scorer_that_says_nothing_is_no_score_of_0() -> None:
    critic = PrecedentCritic(scorer=Oracle())
    (verdict,) = critic.judge([make_query("ls")], [Precedents()])
    assert verdict.features["scorer_scored"] == 0.0 and verdict.confidence == 0.5


def test_a_scorer_sees_no_more_precedents_than_it_wants() -> None:
    oracle = Oracle()
    found = tuple(Precedent(make_record(n, make_query("ls"), True), 0.5) for n in range(5))
    PrecedentCritic(scorer=oracle).judge([make_query("ls")], [Precedents(found, (), 3)])
    assert oracle.shown == [Precedents(found[:2], (), 3)]


def test_a_scorer_that_learns_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="learns from the bank"):
        PrecedentCritic(scorer=PrecedentCritic())
