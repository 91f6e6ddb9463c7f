"""Random and recent precedents, for ablations."""

from dataclasses import replace

import pytest
from retrieval_oracle import MemoryBank, query, record

from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Retriever
from ceb_gym.retrieval.simple import RandomRetriever, RecentRetriever
from ceb_gym.types import Pin


@pytest.fixture
def bank() -> MemoryBank:
    bank = MemoryBank()
    for n in range(10):
        bank.commit("own", [record(f"e{n}:0:1", "s", True), record(f"e{n}:1:1", "s", False)])
    bank.commit("other", [record("o:0:1", "s", True, scope="other", created_at=9.0)])
    return bank


def ids(precedents) -> list[str]:
    return [one.record.record_id for one in precedents]


@pytest.mark.parametrize("make", [RandomRetriever, RecentRetriever])
def test_it_is_a_retriever_whose_records_have_no_similarity(bank, make):
    retriever = make(bank)
    assert isinstance(retriever, Retriever)
    retriever.save()
    [found] = retriever.view((Pin("own", 4),)).find([query("s")], 2)
    assert found.revision == 4
    assert [one.similarity for one in found.productive + found.unproductive] == [0.0] * 4
    assert all(one.record.label for one in found.productive)
    assert not any(one.record.label for one in found.unproductive)


@pytest.mark.parametrize("make", [RandomRetriever, RecentRetriever])
def test_only_records_of_the_pinned_revision_are_given(bank, make):
    [found] = make(bank).view((Pin("own", 2),)).find([query("s")], 99)
    assert sorted(ids(found.productive)) == ["e0:0:1", "e1:0:1"]
    assert sorted(ids(found.unproductive)) == ["e0:1:1", "e1:1:1"]


@pytest.mark.parametrize("make", [RandomRetriever, RecentRetriever])
def test_an_empty_scope_gives_nothing(bank, make):
    [found] = make(bank).view((Pin("never", 0),)).find([query("s")], 2)
    assert found.productive == found.unproductive == ()


@pytest.mark.parametrize("make", [RandomRetriever, RecentRetriever])
def test_a_negative_k_and_no_pin_are_refused(bank, make):
    with pytest.raises(ConfigurationError, match="k is -1"):
        make(bank).view((Pin("own", 2),)).find([query("s")], -1)
    with pytest.raises(ConfigurationError, match="at least one pin"):
        make(bank).view(())


@pytest.mark.parametrize("k", [0, 1, 3])
def test_recent_gives_the_newest_first(bank, k):
    [found] = RecentRetriever(bank).view((Pin("own", 10),)).find([query("s")], k)
    assert ids(found.productive) == ["e9:0:1", "e8:0:1", "e7:0:1"][:k]


def test_recent_orders_scopes_by_time(bank):
    [found] = RecentRetriever(bank).view((Pin("own", 10), Pin("other", 1))).find([query("s")], 2)
    assert ids(found.productive) == ["o:0:1", "e9:0:1"]


def test_random_depends_on_seed_and_query_alone(bank):
    pins = (Pin("own", 10),)
    queries = [replace(query("s"), step_index=step) for step in range(20)]

    def drawn(seed: int) -> list[list[str]]:
        return [ids(one.productive) for one in RandomRetriever(bank, seed).view(pins).find(queries, 2)]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert len({tuple(one) for one in drawn(0)}) > 5


def test_a_view_at_each_step_reads_the_bank_once(bank):
    retriever = RecentRetriever(bank)
    for _ in range(5):
        retriever.view((Pin("own", 10),))
    assert bank.calls.count("records") == 1
