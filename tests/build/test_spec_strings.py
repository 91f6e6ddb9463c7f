from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from ceb_gym.bank import SqlBank
from ceb_gym.build.parts import (
    check_retriever,
    make_critic,
    make_labeler,
    make_policy,
    make_retriever,
    make_reviewer,
    make_summarizer,
    split_bank_url,
)
from ceb_gym.build.specs import parse_spec, parse_value
from ceb_gym.critics.simple import CountsCritic, NeighborsCritic
from ceb_gym.errors import ConfigurationError
from ceb_gym.hindsight.rules import SuccessLabeler
from ceb_gym.retrieval.simple import RandomRetriever
from ceb_gym.summaries.generic import GenericSummarizer
from ceb_gym.types import Decision, Precedents, Query, Verdict


def summarizer(text: Any) -> Any:
    return make_summarizer(text, spaces.Discrete(4), spaces.Discrete(2))


def reviewer(text: Any) -> Any:
    return make_reviewer(text, 5.0)


def retriever(text: Any) -> Any:
    bank = SqlBank("memory:")
    try:
        return make_retriever(text, bank, "memory:")
    finally:
        bank.close()


MAKERS: dict[str, Callable[[Any], Any]] = {
    "critic": make_critic,
    "labeler": make_labeler,
    "policy": make_policy,
    "retriever": retriever,
    "reviewer": reviewer,
    "summarizer": summarizer,
}
EVERY_KIND = pytest.mark.parametrize("kind", MAKERS)

FOREIGN = """
class Parted:
    name, k = "parted", 0
    def __init__(self, option=0, *, other="x"):
        self.option, self.other = option, other
    def judge(self, queries, precedents):
        return []

class Picky:
    def __init__(self, number):
        raise ValueError(f"{number} is not to my taste")

class Asks:
    def __init__(self, limit=1):
        self.limit = limit
    def review(self, query, verdict, precedents):
        return self.limit > 1

def agree(query, verdict, precedents):
    return True

class Describes:
    @classmethod
    def for_spaces(cls, observation_space, action_space, **options):
        made = cls()
        made.seen = (observation_space, action_space, options)
        return made
    def task(self, observation, info, options): return ""
    def state(self, observation, info, action): return ""
    def action(self, action): return ""
    def outcome(self, observation, info): return ""

ready = Parted(9)
number = 3
"""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an importable module of somebody else's."""
    (tmp_path / "foreign_parts.py").write_text(FOREIGN)
    (tmp_path / "foreign_broken.py").write_text("1 / 0")
    (tmp_path / "foreign_typo.py").write_text("def (:")
    monkeypatch.syspath_prepend(tmp_path)
    yield_name = "foreign_parts"
    sys.modules.pop(yield_name, None)
    return yield_name


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("none", None),
        ("null", None),
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("left,right", "left,right"),
        ("", ""),
    ],
)
def test_values_are_read_by_what_they_look_like(text: str, value: Any) -> None:
    read = parse_value(text)
    assert read == value and type(read) is type(value)


def test_a_spec_has_name_argument_and_options() -> None:
    spec = parse_spec("critic", " openai:gpt-5.4?k=2&base_url=http%3A%2F%2Fhost%3A80%2F%3Fa%3Db ")
    assert (spec.name, spec.argument) == ("openai", "gpt-5.4")
    assert spec.options == {"k": 2, "base_url": "http://host:80/?a=b"}


HOSTILE = [
    "",
    " ",
    "?",
    ":",
    ":x",
    "?k=1",
    "x?k",
    "x?k=1&k=2",
    "x?&",
    "a..b:c",
    "\x00",
    "x y:z",
    "nope",
    "nope:",
]


@EVERY_KIND
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_refused_with_a_sentence(kind: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MAKERS[kind](text)
    assert len(str(caught.value)) > 20


@EVERY_KIND
@given(text=st.text(alphabet=st.sampled_from("ab:?=&|%. \x00\ud800é1"), max_size=12))
def test_no_text_raises_anything_but_a_configuration_error(kind: str, text: str) -> None:
    with pytest.raises(ConfigurationError):
        MAKERS[kind](text)


@EVERY_KIND
def test_an_object_in_a_spec_asks_for_its_argument(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"pass {kind}=... again"):
        MAKERS[kind]("<object>")


def test_a_bank_object_in_a_spec_asks_for_its_argument() -> None:
    with pytest.raises(ConfigurationError, match=r"pass bank=\.\.\. again"):
        split_bank_url("<object>")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("critic", "base_rate, constant, cot, counts"),
        ("labeler", "return, reward_level, success"),
        ("policy", "defer_below, defer_lowest, never, review_budget"),
        ("retriever", "random, recent, tfidf"),
        ("summarizer", "generic"),
    ],
)
def test_an_unknown_name_offers_the_valid_ones(kind: str, names: str) -> None:
    with pytest.raises(ConfigurationError, match=f"There is no {kind} 'nope': choose one of .*{names}"):
        MAKERS[kind]("nope")


@pytest.mark.parametrize(
    ("kind", "text", "options"),
    [
        ("critic", "neighbors?foo=1", "k, prior_weight, power"),
        ("labeler", "return:0.9?foo=1", "gamma, window"),
        ("policy", "defer_below:0.1?foo=1", "threshold"),
        ("retriever", "random?foo=1", "it takes seed"),
        ("retriever", "random?bank=1", "it takes seed"),
        ("retriever", "recent?foo=1", "it takes none"),
        ("summarizer", "generic?foo=1", "state_chars, outcome_chars, action_chars, action_names"),
        ("summarizer", "generic?action_space=1", "state_chars"),
    ],
)
def test_an_unknown_option_names_the_valid_ones(kind: str, text: str, options: str) -> None:
    with pytest.raises(ConfigurationError, match=options):
        MAKERS[kind](text)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("critic", "counts:3", "takes no argument, got '3'"),
        ("summarizer", "generic:3", "takes no argument, got '3'"),
        ("critic", "constant:0.5?confidence=0.6", "gives confidence twice"),
        ("policy", "defer_below", "needs threshold"),
        ("critic", "neighbors?k=two", "k is 'two'"),
        ("critic", "constant:x", "'x'"),
        ("labeler", "return | success", "joins several"),
        ("labeler", "return:2", "gamma is 2"),
        ("summarizer", "generic?state_chars=3", "state_chars is 3"),
        ("summarizer", "generic?action_names=5", "action_names is 5"),
        ("summarizer", "generic?action_names=a", "1 names for 2 actions"),
        ("summarizer", "generic?action_names=a,a", "same name"),
        ("reviewer", "callback", "not of the form package.module:function"),
    ],
)
def test_a_spec_that_cannot_work_says_why(kind: str, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        MAKERS[kind](text)


def test_options_reach_the_part() -> None:
    critic = make_critic("neighbors?k=3&prior_weight=0.5")
    assert isinstance(critic, NeighborsCritic) and critic.k == 3
    assert summarizer("generic?action_names=left,move%20right").action(1) == "action_move_right"


@EVERY_KIND
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no_such_module_here:Part", "No module named 'no_such_module_here'"),
        ("foreign_parts:Missing", "has no attribute 'Missing'"),
        ("foreign_broken:Part", "ZeroDivisionError"),
        ("foreign_typo:Part", "SyntaxError"),
    ],
)
def test_what_cannot_be_imported_is_a_configuration_error(
    kind: str, text: str, said: str, foreign: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        MAKERS[kind](text)


def test_a_class_of_a_module_is_built_with_options(foreign: str) -> None:
    critic: Any = make_critic(f"{foreign}:Parted?option=4&other=y")
    assert (critic.name, critic.option, critic.other) == ("parted", 4, "y")


def test_an_object_that_a_module_holds_ready_is_taken(foreign: str) -> None:
    critic: Any = make_critic(f"{foreign}:ready")
    assert critic.option == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Parted?foo=1", "it takes option, other"),
        ("Picky", "needs number"),
        ("Picky?number=7", "7 is not to my taste"),
        ("number", "lacks `name`, `k`, `judge`"),
        ("Asks", "lacks `name`, `k`, `judge`"),
    ],
)
def test_a_part_of_a_module_that_cannot_be_built_says_why(foreign: str, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_critic(f"{foreign}:{text}")


def test_a_reviewer_is_a_function_or_a_class_with_options(foreign: str) -> None:
    query = Query("env", "scope", 0, "episode", "task", "state", "act", (), False, 0)
    answers = [
        reviewer(f"{foreign}:{text}").review(query, Verdict(0.1), Precedents()).kind
        for text in ("agree", "Asks", "Asks?limit=2")
    ]
    assert answers == ["execute", "defer", "execute"]
    with pytest.raises(ConfigurationError, match="only a class takes options"):
        reviewer(f"{foreign}:agree?limit=2")


def test_a_summarizer_class_is_built_for_the_environments_spaces(foreign: str) -> None:
    made = summarizer(f"{foreign}:Describes?depth=2")
    assert made.seen == (spaces.Discrete(4), spaces.Discrete(2), {"depth": 2})


def test_the_generic_summarizer_is_the_default() -> None:
    assert isinstance(summarizer(None), GenericSummarizer)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("critic", CountsCritic),
        ("labeler", SuccessLabeler),
        ("summarizer", GenericSummarizer),
        ("retriever", RandomRetriever),
    ],
)
def test_a_class_in_place_of_an_instance_is_refused(kind: str, part: Any) -> None:
    with pytest.raises(ConfigurationError, match="class"):
        check_retriever(part) if kind == "retriever" else MAKERS[kind](part)


@pytest.mark.parametrize("k", [-1, 1.5, "2", True, None])
def test_a_critic_that_wants_no_whole_number_of_precedents_is_refused(k: Any) -> None:
    critic = CountsCritic()
    critic.k = k
    with pytest.raises(ConfigurationError, match="wants k="):
        make_critic(critic)


def test_a_missing_labeler_lists_the_choices() -> None:
    with pytest.raises(ConfigurationError, match=r'never guessed.*"success".*learn="off"'):
        make_labeler(None)


def test_none_means_that_labels_come_later() -> None:
    assert make_labeler("none") is None


def test_a_function_is_a_labeler() -> None:
    def by_hand(trajectory: Any) -> list[bool]:
        return []

    labeler = make_labeler(by_hand)
    assert labeler is not None and labeler.name.endswith("by_hand")


HERE = os.getcwd()


@pytest.mark.parametrize(
    ("bank", "parts"),
    [
        ("bank.db", (f"sqlite:///{HERE}/bank.db", None, ())),
        ("/tmp/bank.db", ("sqlite:////tmp/bank.db", None, ())),
        ("memory:?scope=x", ("memory:", "x", ())),
        (
            "bank.db?scope={env_id}/{user}&read_scopes=a,b,a,",
            (f"sqlite:///{HERE}/bank.db", "{env_id}/{user}", ("a", "b")),
        ),
        ("bank.db?scope=a%26b", (f"sqlite:///{HERE}/bank.db", "a&b", ())),
        (
            "postgresql+psycopg://u@h/n?options=-csearch_path%3Dx&scope=s",
            ("postgresql+psycopg://u@h/n?options=-csearch_path%3Dx", "s", ()),
        ),
    ],
)
def test_a_bank_url_is_split_into_place_scope_and_further_scopes(bank: str, parts: Any) -> None:
    assert split_bank_url(bank) == parts


@pytest.mark.parametrize(
    ("bank", "said"),
    [
        ("", "names no place"),
        ("?scope=a", "names no place"),
        ("b.db?scope=", "empty scope"),
        ("b?scope=a&scope=b", "twice"),
    ],
)
def test_a_bank_url_that_cannot_work_says_why(bank: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        split_bank_url(bank)


def test_decisions_of_a_built_policy_are_decisions() -> None:
    query = Query("env", "scope", 0, "episode", "task", "state", "act", (), False, 0)
    decision = make_policy("defer_below:0.5").policy.decide(query, Verdict(0.1))
    assert decision == Decision("defer", "confidence 0.100 is below 0.5")
