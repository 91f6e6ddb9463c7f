"""Whatever happens to a bank, a view finds what a scikit-learn refit of its pinned records finds."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retrieval_oracle import MemoryBank, expected, query, ranked, record, refit_similarities

from ceb_gym.retrieval import index, lineage, search
from ceb_gym.retrieval.analyzer import Vocabulary
from ceb_gym.retrieval.index import IndexState
from ceb_gym.retrieval.segment import build_segment, pack_ids
from ceb_gym.retrieval.views import TfidfRetriever
from ceb_gym.types import Pin

WORDS = [
    "ab",
    "cd",
    "ef",
    "gh",
    "AB",
    "x",
    "",
    "Straße",
    "naïve",
    "日本",
    "x1",
    "snake_case",
    "İI",
    "1",
    "\u00aa\u00aa",
]
KEYS = st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join) | st.text(max_size=12)
SCOPES = ("own", "other")
TINY = {
    (index, "SMALL_SEGMENT"): 2,
    (index, "MERGE_RATIO"): 2,
    (index, "MAX_DRIFT"): 0.2,
    (lineage, "RECORDS_AT_ONCE"): 3,
    (lineage, "KEPT_STATES"): 3,
    (lineage, "KEPT_WEIGHTS"): 1,
    (search, "CANDIDATES_AT_ONCE"): 2,
    (search, "BLOCK"): 2,
    (search, "FEW_CANDIDATES"): 2,
}


@contextlib.contextmanager
def sizes(tiny: bool) -> Iterator[None]:
    """With tiny limits a handful of records passes through every merge and every block."""
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in TINY.items() if tiny else ():
            patch.setattr(module, name, value)
        yield


EVENTS = st.one_of(
    st.tuples(
        st.just("add"),
        st.sampled_from(SCOPES),
        st.lists(st.tuples(KEYS, st.booleans(), st.integers(0, 3)), min_size=1, max_size=6),
    ),
    st.tuples(
        st.just("remove"), st.sampled_from(SCOPES), st.lists(st.integers(0, 99), min_size=1, max_size=9)
    ),
    st.tuples(
        st.just("ask"),
        st.sampled_from([("own",), ("other",), ("own", "other"), ("other", "own")]),
        st.tuples(
            st.floats(0, 1), st.floats(0, 1), st.integers(0, 4), st.lists(KEYS, min_size=1, max_size=3)
        ),
    ),
    st.tuples(st.just("reload"), st.booleans(), st.none()),
    st.tuples(st.just("purge"), st.sampled_from(SCOPES), st.none()),
)


class Run:
    """Plays events on a bank and a retriever, and compares every answer."""

    def __init__(self, folder: Path) -> None:
        self.bank = MemoryBank()
        self.path = folder / "index"
        self.retriever = TfidfRetriever(self.bank, snapshot_path=self.path)
        self.count = 0

    def play(self, kind: str, subject, details) -> None:
        getattr(self, kind)(subject, details)

    def add(self, scope: str, keys) -> None:
        added = []
        for state, label, time in keys:
            self.count += 1
            added.append(record(f"é{self.count}:0:1", state, label, scope=scope, created_at=float(time)))
        self.bank.commit(scope, added)

    def remove(self, scope: str, numbers: list[int]) -> None:
        if scope in self.bank.histories and (alive := self.bank.alive(scope)):
            self.bank.commit(scope, (), {alive[number % len(alive)] for number in numbers})

    def purge(self, scope: str, _) -> None:
        if scope in self.bank.histories:
            self.bank.purge(scope)

    def reload(self, save: bool, _) -> None:
        if save:
            self.retriever.save()
        self.retriever = TfidfRetriever(self.bank, snapshot_path=self.path)

    def ask(self, scopes: tuple[str, ...], details) -> None:
        *shares, k, states = details
        pins = []
        for scope, share in zip(scopes, shares, strict=False):
            floor = self.bank.histories[scope].floor if scope in self.bank.histories else 0
            pins.append(Pin(scope, round(floor + share * (self.bank.revision(scope) - floor))))
        answers = self.retriever.view(tuple(pins)).find([query(state) for state in states], k)
        for state, answer in zip(states, answers, strict=True):
            assert answer.revision == pins[0].revision
            for label, found in ((True, answer.productive), (False, answer.unproductive)):
                wanted = expected(self.bank, pins, query(state), label, k)
                assert [one.record.record_id for one in found] == [name for name, _ in wanted]
                similarities = [one.similarity for one in found]
                assert similarities == pytest.approx([value for _, value in wanted], abs=1e-9)
                assert similarities == sorted(similarities, reverse=True)
                assert all(0 <= value <= 1 for value in similarities)


@pytest.mark.parametrize("tiny", [True, False])
@settings(max_examples=120, deadline=None)
@given(events=st.lists(EVENTS, min_size=4, max_size=24))
def test_any_history_of_a_bank_is_searched_like_a_refit(tiny, events):
    with sizes(tiny), tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        for event in events:
            run.play(*event)
        run.ask(SCOPES, (1.0, 1.0, 3, ["ab cd ef", "gh AB"]))


def state_of(keys: list[str], pieces: int, vocabulary: Vocabulary) -> IndexState:
    """All keys as productive documents, in some segments."""
    state = IndexState()
    for piece in np.array_split(np.arange(len(keys)), pieces):
        if len(piece):
            encoded = vocabulary.add([keys[one] for one in piece])
            ids = pack_ids([str(one) for one in piece])
            n = len(piece)
            state = state.with_segment(
                build_segment(encoded, len(vocabulary), n, np.zeros(n, np.int16), np.zeros(n), ids)
            )
    return state


@settings(max_examples=150, deadline=None)
@given(
    keys=st.lists(KEYS, min_size=1, max_size=20),
    removed=st.sets(st.integers(0, 19)),
    wanted=KEYS,
    pieces=st.integers(1, 5),
    k=st.integers(1, 6),
)
def test_keys_without_any_term_are_searched_like_a_refit(keys, removed, wanted, pieces, k):
    with sizes(True):
        vocabulary = Vocabulary()
        state = state_of(keys, pieces, vocabulary)
        state = state.without_records([str(one) for one in removed if one < len(keys)])
        living = [one for one in range(len(keys)) if one not in removed]
        [(found, unproductive)] = search.search(state, vocabulary.look_up([wanted]), k)
    similarities = refit_similarities([keys[one] for one in living], wanted) if living else np.zeros(0)
    best = ranked(similarities)[:k] if living else []
    assert [state.record_id(match.hit) for match in found] == [str(living[one]) for one in best]
    assert [match.similarity for match in found] == pytest.approx(
        [similarities[one] for one in best], abs=1e-9
    )
    assert unproductive == []


def test_a_large_random_corpus_is_searched_like_a_refit():
    rng = np.random.default_rng(5)
    lexicon = [f"word{number}" for number in range(400)]
    weights = 1 / np.arange(1, 401)
    bank = MemoryBank()
    for episode in range(150):
        states = [" ".join(rng.choice(lexicon, size=25, p=weights / weights.sum())) for _ in range(8)]
        bank.commit(
            "own", [record(f"e{episode}:{step}:1", state, step % 3 > 0) for step, state in enumerate(states)]
        )
        if episode % 10 == 9:
            bank.commit("own", (), set(rng.choice(bank.alive("own"), size=30, replace=False)))
    retriever = TfidfRetriever(bank)
    queries = [query(" ".join(rng.choice(lexicon, size=25, p=weights / weights.sum()))) for _ in range(4)]
    for revision in range(1, bank.revision("own") + 1, 8):
        pins = (Pin("own", revision),)
        for wanted, answer in zip(queries, retriever.view(pins).find(queries, 5), strict=True):
            for label, found in ((True, answer.productive), (False, answer.unproductive)):
                best = expected(bank, pins, wanted, label, 5)
                assert [one.record.record_id for one in found] == [name for name, _ in best]
                assert [one.similarity for one in found] == pytest.approx([v for _, v in best], abs=1e-9)


def equal_but_for_rounding(num_keys: int) -> tuple[list[str], str]:
    """Keys that hold the same counts, dealt to the words in another order: equal sums, added up anew."""
    rng = np.random.default_rng(3)
    words = [f"word{number}" for number in range(21)]
    counts = [1, 2, 3, 5, 7, 11, 13] * 3
    keys = []
    for number in range(num_keys):
        dealt = [word for word, n in zip(words, rng.permutation(counts), strict=True) for _ in range(n)]
        keys.append(" ".join(f"{word} only{number}x{place}" for place, word in enumerate(dealt)))
    return keys, " ".join(words)


@pytest.mark.parametrize("k", [1, 4, 60])
@pytest.mark.parametrize("pieces", [1, 5])
def test_similarities_that_differ_by_rounding_only_are_ties(pieces, k):
    keys, wanted = equal_but_for_rounding(60)
    vocabulary = Vocabulary()
    with sizes(True):
        state = state_of(keys, pieces, vocabulary)
        [(found, _)] = search.search(state, vocabulary.look_up([wanted]), k)
    newest_first = [str(len(keys) - 1 - place) for place in range(k)]
    assert [state.record_id(match.hit) for match in found] == newest_first


def test_norms_of_an_earlier_state_hide_no_record_that_has_become_the_best():
    """`rare` becomes frequent, so that the first key comes closer to the query than the second one."""
    keys = ["wanted rare", "wanted frequent", "other frequent", *(f"filler{n} filler" for n in range(13))]
    later = ["some rare", "more rare", "again rare"]
    vocabulary = Vocabulary()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "SMALL_SEGMENT", 2)
        patch.setattr(index, "MERGE_RATIO", 2)
        patch.setattr(index, "MAX_DRIFT", 0.5)
        state = state_of(keys, 1, vocabulary)
        assert best_keys(state, vocabulary, keys) == refit_best(keys) == ["wanted frequent"]
        norms = state.weights[0].norms
        encoded, ids = vocabulary.add(later), pack_ids([str(len(keys) + n) for n in range(3)])
        segment = build_segment(encoded, len(vocabulary), 3, np.zeros(3, np.int16), np.zeros(3), ids)
        state = state.with_segment(segment)
        assert best_keys(state, vocabulary, keys + later) == refit_best(keys + later) == ["wanted rare"]
        assert state.weights[0].norms is norms


def best_keys(state: IndexState, vocabulary: Vocabulary, keys: list[str]) -> list[str]:
    [(found, _)] = search.search(state, vocabulary.look_up(["wanted"]), 1)
    return [keys[int(state.record_id(match.hit))] for match in found]


def refit_best(keys: list[str]) -> list[str]:
    return [keys[ranked(refit_similarities(keys, "wanted"))[0]]]
