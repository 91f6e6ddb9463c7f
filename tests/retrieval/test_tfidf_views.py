"""Pinned views of the index: isolation, threads, caches, and the real bank."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from retrieval_oracle import MemoryBank, expected, query, record

from ceb_gym.bank import SqlBank
from ceb_gym.errors import ConfigurationError, RevisionGoneError
from ceb_gym.protocols import Retriever
from ceb_gym.retrieval import columns, lineage
from ceb_gym.retrieval.views import RecordCache, TfidfRetriever
from ceb_gym.types import Pin, Step, StepLabel, Trajectory, TrajectoryKey

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def grown_bank(commits: int = 12) -> MemoryBank:
    rng = random.Random(2)
    bank = MemoryBank()
    for n in range(commits):
        states = [" ".join(rng.choices(WORDS, k=4)) for _ in range(6)]
        bank.commit("own", [record(f"e{n}:{i}:1", one, rng.random() < 0.5) for i, one in enumerate(states)])
    return bank


def seen(view, state: str = "beta gamma delta", k: int = 3) -> list[list[tuple[str, float]]]:
    [found] = view.find([query(state)], k)
    return [
        [(one.record.record_id, one.similarity) for one in side]
        for side in (found.productive, found.unproductive)
    ]


def assert_as_refit(bank: MemoryBank, pins: tuple[Pin, ...], found: list[list[tuple[str, float]]]) -> None:
    for label, side in zip((True, False), found, strict=True):
        wanted = expected(bank, pins, query("beta gamma delta"), label, 3)
        assert [name for name, _ in side] == [name for name, _ in wanted]
        assert [value for _, value in side] == pytest.approx([value for _, value in wanted], abs=1e-9)


def test_it_is_a_retriever():
    assert isinstance(TfidfRetriever(MemoryBank()), Retriever)


def test_a_view_stays_as_it_was_while_the_bank_goes_on():
    bank = grown_bank()
    retriever = TfidfRetriever(bank)
    views = {revision: retriever.view((Pin("own", revision),)) for revision in (3, 7, 12)}
    before = {revision: seen(view) for revision, view in views.items()}
    bank.commit("own", [record("late:0:1", "beta gamma delta", True)], set(bank.alive("own")[::2]))
    retriever.view((Pin("own", 13),)).find([query("beta")], 2)
    assert {revision: seen(view) for revision, view in views.items()} == before


def test_the_same_bank_gives_the_same_bytes_however_the_index_came_to_be(tmp_path):
    bank = grown_bank()
    bank.commit("own", (), set(bank.alive("own")[::3]))
    pins = (Pin("own", 13),)
    step_by_step = TfidfRetriever(bank, snapshot_path=tmp_path / "index")
    for revision in range(14):
        view = step_by_step.view((Pin("own", revision),))
    step_by_step.save()
    at_once = TfidfRetriever(bank).view(pins)
    reopened = TfidfRetriever(bank, snapshot_path=tmp_path / "index").view(pins)
    for state in ("beta gamma delta", "alpha alpha theta", "eta zeta beta beta"):
        assert seen(view, state) == seen(at_once, state) == seen(reopened, state)


def test_records_of_other_scopes_change_no_similarity():
    bank = grown_bank()
    alone = seen(TfidfRetriever(bank).view((Pin("own", 12),)))
    bank.commit("other", [record(f"o{n}:0:1", "beta gamma delta", True, scope="other") for n in range(30)])
    retriever = TfidfRetriever(bank)
    retriever.view((Pin("other", 1),)).find([query("beta")], 2)
    retriever.view((Pin("other", 1), Pin("own", 12))).find([query("beta")], 2)
    assert seen(retriever.view((Pin("own", 12),))) == alone


def test_a_batch_gets_what_single_queries_get():
    bank = grown_bank()
    view = TfidfRetriever(bank).view((Pin("own", 12),))
    rng = random.Random(4)
    queries = [query(" ".join(rng.choices([*WORDS, "unknown"], k=rng.randint(0, 6)))) for _ in range(64)]
    assert view.find(queries, 2) == [view.find([one], 2)[0] for one in queries]


def test_no_query_no_k_and_no_record_are_no_error():
    view = TfidfRetriever(grown_bank()).view((Pin("own", 12),))
    assert view.find([], 2) == []
    assert seen(view, k=0) == [[], []]
    assert seen(TfidfRetriever(MemoryBank()).view((Pin("own", 0),))) == [[], []]


@pytest.mark.parametrize("pins", [(), (Pin("own", 1), Pin("own", 2))])
def test_pins_without_meaning_are_refused(pins):
    with pytest.raises(ConfigurationError, match="one revision of each scope"):
        TfidfRetriever(grown_bank()).view(pins)


def test_a_negative_k_is_refused():
    with pytest.raises(ConfigurationError, match="k is -2"):
        TfidfRetriever(grown_bank()).view((Pin("own", 2),)).find([query("a")], -2)


def test_a_scope_pinned_twice_alike_counts_once():
    retriever = TfidfRetriever(grown_bank())
    assert seen(retriever.view((Pin("own", 5), Pin("own", 5)))) == seen(retriever.view((Pin("own", 5),)))


def test_a_purged_revision_is_refused_where_no_state_is_kept():
    bank = grown_bank()
    bank.purge("own")
    with pytest.raises(RevisionGoneError):
        TfidfRetriever(bank).view((Pin("own", 3),))


def test_a_record_purged_after_the_pin_is_left_out():
    bank = grown_bank(1)
    view = TfidfRetriever(bank).view((Pin("own", 1),))
    gone = bank.alive("own")[0]
    bank.commit("own", (), {gone})
    bank.purge("own")
    found = [name for side in seen(view, k=99) for name, _ in side]
    assert gone not in found
    assert len(found) == 5


def test_older_pins_do_not_cost_the_newest_state():
    bank = grown_bank()
    retriever = TfidfRetriever(bank)
    for revision in range(12, 0, -1):
        retriever.view((Pin("own", revision),))
    bank.calls.clear()
    bank.commit("own", [record("late:0:1", "beta", True)])
    retriever.view((Pin("own", 13),))
    assert bank.calls == ["changes"]


def test_few_states_are_kept_but_always_the_newest(monkeypatch):
    monkeypatch.setattr(lineage, "KEPT_STATES", 3)
    bank = grown_bank()
    retriever = TfidfRetriever(bank)
    for revision in (12, 1, 2, 3, 4, 5):
        retriever.view((Pin("own", revision),))
    bank.calls.clear()
    retriever.view((Pin("own", 12),))
    assert bank.calls == []
    retriever.view((Pin("own", 1),))
    assert bank.calls == ["records"]


def test_found_records_are_fetched_once_for_a_batch_and_then_kept():
    bank = grown_bank()
    view = TfidfRetriever(bank).view((Pin("own", 12),))
    bank.calls.clear()
    view.find([query(one) for one in WORDS], 2)
    view.find([query(one) for one in WORDS], 2)
    assert bank.calls == ["records_by_id"]


def test_the_record_cache_stays_small():
    bank = grown_bank(50)
    cache = RecordCache(bank, size=20)
    for record_id in bank.alive("own"):
        assert cache.get([record_id])[record_id].record_id == record_id
    assert len(cache._young) + len(cache._old) <= 22


def test_threads_share_one_retriever_while_the_bank_grows():
    bank = grown_bank()
    retriever = TfidfRetriever(bank)
    stop = threading.Event()

    def grow() -> None:
        rng = random.Random(8)
        for n in range(60):
            states = [" ".join(rng.choices([*WORDS, f"new{n}"], k=4)) for _ in range(4)]
            added = [record(f"g{n}:{i}:1", one, i % 2 == 0) for i, one in enumerate(states)]
            bank.commit("own", added, {bank.alive("own")[0]})
            retriever.view((Pin("own", bank.revision("own")),))
        stop.set()

    def read(seed: int) -> list[tuple[tuple[Pin, ...], list[list[tuple[str, float]]]]]:
        rng = random.Random(seed)
        answers = []
        while not stop.is_set() or not answers:
            newest = bank.revision("own")
            pins = (Pin("own", newest - rng.randint(0, min(newest, 9))),)
            answers.append((pins, seen(retriever.view(pins))))
        return answers

    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(read, seed) for seed in range(4)]
        pool.submit(grow).result()
        answers = [answer for reader in readers for answer in reader.result()]
    for pins, found in random.Random(1).sample(answers, min(80, len(answers))):
        assert_as_refit(bank, pins, found)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_a_thread_holds_the_lock_does_not_hang():
    bank = grown_bank()
    retriever = TfidfRetriever(bank)
    before = seen(retriever.view((Pin("own", 11),)))
    [line] = retriever._lineages.values()
    with retriever._lock, line._lock:
        child = os.fork()
    if child == 0:
        status = 1
        try:
            retriever.view((Pin("own", 12),))
            status = 0 if seen(retriever.view((Pin("own", 11),))) == before else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_sums_are_the_same_without_the_function_inside_scipy():
    rng = np.random.default_rng(0)
    starts = np.array([0, 3, 3, 5, 9], dtype=np.int32)
    rows = np.array([0, 2, 4, 1, 2, 0, 1, 3, 4], dtype=np.int32)
    values = rng.random(9).astype(np.float32)
    chosen, weights = np.array([3, 0, 1]), rng.random(3).astype(np.float32)
    direct, product = np.ones(5, np.float32), np.ones(5, np.float32)
    columns.add_columns(starts, rows, values, chosen, weights, direct)
    columns.add_columns_by_product(starts, rows, values, chosen, weights, product)
    assert direct == pytest.approx(product, rel=1e-6)


def add_episode(bank: SqlBank, number: int, rng: random.Random) -> None:
    steps = tuple(
        Step(i, " ".join(rng.choices(WORDS, k=4)), "go", "go", "out", 0.0, True, 0.5) for i in range(6)
    )
    episode = Trajectory(f"e{number}", "env", "own", "do", steps, "terminated", created_at=float(number))
    bank.add_trajectory(episode)
    claim = bank.claim(TrajectoryKey(episode.episode_id, 0))
    bank.commit_labels(claim, [StepLabel(i, rng.random() < 0.5, 1.0) for i in range(6)], "test")


def test_on_the_real_bank_it_equals_a_refit_through_commits_eviction_purge_and_restart(tmp_path):
    bank = SqlBank(f"sqlite:///{tmp_path}/bank.db")
    rng = random.Random(6)
    path = tmp_path / "bank.db.index"
    retriever = TfidfRetriever(bank, snapshot_path=path)
    for number in range(15):
        add_episode(bank, number, rng)
        if number % 4 == 3:
            alive = [one.record_id for one in bank.records("own")]
            bank.evict("own", alive[:5])
        if number == 9:
            bank.purge("own")
        if number % 5 == 4:
            retriever.save()
            retriever = TfidfRetriever(bank, snapshot_path=path)
        pins = (Pin("own", bank.revision("own")),)
        assert_as_refit(bank, pins, seen(retriever.view(pins)))
    assert any(file.suffix == ".npz" for file in tmp_path.iterdir())
    bank.close()
