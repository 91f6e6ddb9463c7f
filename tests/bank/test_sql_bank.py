"""What `SqlBank` does beyond the contract: relabelling, removal, counting, what a crash leaves."""

import numpy as np
import pytest

from ceb_gym.bank import SqlBank
from ceb_gym.errors import BankConflictError, BankError, RevisionGoneError
from ceb_gym.testing import ManualClock, bank_episode, make_step, make_trajectory
from ceb_gym.types import StepLabel, TrajectoryKey, Vote

KEY = TrajectoryKey("episode", 0)


def relabel(bank: SqlBank, labels: list[StepLabel], key: TrajectoryKey = KEY) -> int | None:
    claim = bank.claim(key, relabel=True)
    assert claim is not None
    return bank.commit_labels(claim, labels, "second")


def ids(bank: SqlBank, **bounds: int) -> list[str]:
    return [record.record_id for record in bank.records("scope", **bounds)]


# Relabelling


def test_new_labels_replace_the_old_records_in_one_revision(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory(steps=2))
    assert relabel(bank, [StepLabel(0, False, 0.0)]) == 2
    assert ids(bank) == ["episode:0:2"]
    assert ids(bank, until=1) == ["episode:0:1", "episode:1:1"]
    changes = bank.changes("scope", 1, 2)
    assert [record.record_id for record in changes.added] == ["episode:0:2"]
    assert sorted(changes.removed) == ["episode:0:1", "episode:1:1"]


def test_relabelling_leaves_other_segments_alone(bank: SqlBank) -> None:
    bank.add_trajectory(make_trajectory(steps=[make_step(0)], ending="segmented"))
    bank_episode(bank, make_trajectory(steps=[make_step(1)], segment=1))
    relabel(bank, [StepLabel(0, True, 1.0)], TrajectoryKey("episode", 0))
    assert ids(bank) == ["episode:1:1", "episode:0:1"]
    relabel(bank, [StepLabel(1, True, 1.0)], TrajectoryKey("episode", 1))
    assert ids(bank) == ["episode:0:1", "episode:1:2"]


def test_taking_all_labels_back_is_a_revision_that_only_removes(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory(steps=2))
    assert relabel(bank, []) == 2
    assert ids(bank) == []
    assert bank.changes("scope", 0, 2).added == ()


def test_record_added_and_removed_between_two_revisions_is_in_no_change(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory("other", 1))
    bank_episode(bank, make_trajectory(steps=1))
    relabel(bank, [])
    changes = bank.changes("scope", 1, 3)
    assert (changes.added, changes.removed) == ((), ())


# Removal


def test_evicted_records_are_gone_from_their_revision_on(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory(steps=3))
    assert bank.evict("scope", ["episode:1:1", "nowhere:0:1"]) == 2
    assert ids(bank) == ["episode:0:1", "episode:2:1"]
    assert ids(bank, until=1) == ["episode:0:1", "episode:1:1", "episode:2:1"]
    assert bank.changes("scope", 1, 2).removed == ("episode:1:1",)
    assert "episode:1:1" in bank.records_by_id(["episode:1:1"])


def test_evicting_what_is_not_there_is_no_revision(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory())
    bank.evict("scope", ["episode:0:1"])
    assert bank.evict("scope", ["episode:0:1"]) == 2
    assert bank.evict("unknown", ["episode:0:1"]) == 0
    assert bank.scopes() == ["scope"]


def test_eviction_never_reaches_another_scope(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory(scope="other"))
    assert bank.evict("scope", ["episode:0:1"]) == 0
    assert len(bank.records("other")) == 3


def test_eviction_changes_the_digest(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory())
    bank.evict("scope", ["episode:0:1"])
    assert bank.digest("scope", 1) != bank.digest("scope", 2)


def test_prune_keeps_the_newest(bank: SqlBank) -> None:
    for name in "abc":
        bank_episode(bank, make_trajectory(name, 2))
    assert bank.prune("scope", keep=3) == 3
    assert ids(bank) == ["b:1:1", "c:0:1", "c:1:1"]
    assert bank.prune("scope", keep=3) == 0
    assert bank.revision("scope") == 4


def test_prune_removes_what_is_older_than_a_time(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory("new", 1, created_at=20.0))
    bank_episode(bank, make_trajectory("old", 1, created_at=10.0))
    assert bank.prune("scope", before=20.0) == 1
    assert ids(bank) == ["new:0:1"]


@pytest.mark.parametrize("bounds", [{}, {"keep": 1, "before": 1.0}, {"keep": -1}])
def test_prune_without_one_clear_bound_is_refused(bank: SqlBank, bounds: dict[str, float]) -> None:
    with pytest.raises(BankError, match="keep"):
        bank.prune("scope", **bounds)  # type: ignore[arg-type]  # wrong on purpose


def test_purge_deletes_removed_records_and_raises_the_floor(bank: SqlBank) -> None:
    for name in "abc":
        bank_episode(bank, make_trajectory(name, 1))
    bank.evict("scope", ["a:0:1"])
    bank_episode(bank, make_trajectory("d", 1))
    assert bank.purge("scope") == 1
    assert bank.records_by_id(["a:0:1"]) == {}
    assert ids(bank) == ids(bank, until=5) == ["b:0:1", "c:0:1", "d:0:1"]
    assert [record.record_id for record in bank.changes("scope", 4, 5).added] == ["d:0:1"]
    with pytest.raises(RevisionGoneError, match="from 4 on"):
        bank.changes("scope", 3, 5)
    with pytest.raises(RevisionGoneError, match="purged"):
        bank.records("scope", until=3)
    assert bank.purge("scope") == 0


def test_order_holds_when_row_numbers_are_used_again_after_a_purge(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory("a", 2))
    bank_episode(bank, make_trajectory("b", 2))
    bank.evict("scope", ["b:0:1", "b:1:1"])
    bank.purge("scope")
    bank_episode(bank, make_trajectory("c", 2))
    assert ids(bank) == ["a:0:1", "a:1:1", "c:0:1", "c:1:1"]


def test_changes_of_a_revision_that_does_not_exist_are_an_error(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory())
    with pytest.raises(RevisionGoneError, match="no revision 2"):
        bank.changes("scope", 1, 2)
    with pytest.raises(BankError, match="swap"):
        bank.changes("scope", 1, 0)


# Counting


def test_stats_count_what_is_there(bank: SqlBank) -> None:
    votes = (Vote(True, 1), Vote(True, 2), Vote(True, 3), Vote(False, 4))
    bank_episode(bank, make_trajectory("a", 2), [StepLabel(0, True, 0.75, votes), StepLabel(1, False, 0.0)])
    bank_episode(bank, make_trajectory("b", 1), [StepLabel(0, True, 1.0)])
    bank.evict("scope", ["b:0:1"])
    bank.add_trajectory(make_trajectory("c"))
    bank.add_trajectory(make_trajectory("d"), status="held")
    bank.journal(make_trajectory("e", 0), make_step(0))
    stats = bank.stats("scope")
    assert stats.trajectories == {"held": 1, "labelled": 2, "pending": 1}
    assert (stats.revision, stats.floor_revision, stats.revisions) == (3, 0, {"evict": 1, "labels": 2})
    assert (stats.productive, stats.unproductive, stats.records, stats.removed) == (1, 1, 2, 1)
    assert stats.positive_share == 0.5
    assert stats.mean_vote_margin == pytest.approx(0.75)
    assert stats.intents == 1


def test_stats_of_an_empty_scope_have_no_shares(bank: SqlBank) -> None:
    stats = bank.stats("unknown")
    assert stats.records == stats.revision == 0
    assert stats.positive_share is None
    assert stats.mean_vote_margin is None


def test_scopes_are_those_of_records_and_of_episodes(bank: SqlBank) -> None:
    bank_episode(bank, make_trajectory("a", scope="labelled"))
    bank.add_trajectory(make_trajectory("b", scope="fresh"))
    assert bank.scopes() == ["fresh", "labelled"]


def test_pages_give_the_same_records_as_one_read(bank: SqlBank) -> None:
    for name in "abcd":
        bank_episode(bank, make_trajectory(name, 3))
    bank.evict("scope", ["b:1:1"])
    for page in (1, 4, 11, 100):
        pages = list(bank.iter_records("scope", page=page))
        assert [record for _, record in pages] == bank.records("scope")
        assert [revision for revision, _ in pages] == [1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4]


# What a crash leaves


def test_journal_shows_what_was_running_when_an_episode_was_cut_off(
    bank: SqlBank, clock: ManualClock
) -> None:
    running = make_trajectory("running", 0)
    bank.journal(running, make_step(0))
    clock.advance(1)
    bank.journal(running, make_step(1, state="old"))
    bank.journal(running, make_step(1, state="a\x00b"))
    assert [(intent.step_index, intent.state) for intent in bank.intents()] == [
        (0, "state 0"),
        (1, "a\ufffdb"),
    ]
    assert bank.intents()[0].action == "act 0"
    assert bank.forget_intents() == 2
    assert bank.intents() == []


def test_arrived_steps_clear_their_intents_only(bank: SqlBank) -> None:
    for index in range(3):
        bank.journal(make_trajectory(steps=0), make_step(index))
    bank.journal(make_trajectory("other", 0), make_step(0))
    bank.add_trajectory(make_trajectory(steps=2, ending="abandoned"))
    assert [(intent.episode_id, intent.step_index) for intent in bank.intents()] == [
        ("episode", 2),
        ("other", 0),
    ]


def test_segments_left_open_by_a_crash_can_be_held(bank: SqlBank) -> None:
    bank.add_trajectory(make_trajectory("a", ending="segmented", created_at=10.0), status="open")
    bank.add_trajectory(make_trajectory("b", ending="segmented", created_at=20.0), status="open")
    bank.add_trajectory(make_trajectory("c", ending="segmented", scope="other"), status="open")
    assert bank.end_open("scope", before=20.0) == 1
    assert bank.pending(held=True) == [("a", 0)]
    assert bank.end_open(status="pending") == 2
    assert bank.pending() == [("b", 0), ("c", 0)]


def test_segment_in_another_scope_than_its_episode_is_refused(bank: SqlBank) -> None:
    bank.add_trajectory(make_trajectory(ending="segmented"))
    with pytest.raises(BankConflictError, match="began in scope 'scope'"):
        bank.add_trajectory(make_trajectory(steps=[make_step(3)], segment=1, scope="other"))
    assert bank.scopes() == ["scope"]


def test_claim_of_a_dead_process_can_be_taken_over(bank: SqlBank) -> None:
    bank.add_trajectory(make_trajectory())
    dead = bank.claim(KEY)
    assert bank.claim(KEY) is None
    alive = bank.claim(KEY, take_over=True)
    assert dead is not None and alive is not None
    assert bank.commit_labels(dead, [StepLabel(0, True, 1.0)], "dead") is None
    assert bank.commit_labels(alive, [StepLabel(0, True, 1.0)], "alive") == 1


# Values from outside


def test_numbers_of_numpy_are_taken(bank: SqlBank) -> None:
    step = make_step(
        0,
        reward=np.float64(0.5),
        confidence=np.float32(0.25),
        executed=np.bool_(True),
        repeated=np.bool_(False),
        features={"x": np.float32(0.5)},
    )
    votes = (Vote(np.bool_(True), np.int64(7)),)
    bank_episode(
        bank, make_trajectory(steps=[step]), [StepLabel(np.int64(0), np.bool_(False), np.float64(0.5), votes)]
    )
    (record,) = bank.records("scope")
    assert (record.label, record.confidence, record.agrees, record.votes) == (False, 0.25, True, 1)
    assert record.features == {"x": 0.5}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("confidence", 1.2, "outside"),
        ("confidence", "high", "no number"),
        ("reward", 10**400, "no number"),
        ("state", None, "must be text"),
        ("features", {"x": float("nan")}, "finite"),
    ],
)
def test_step_that_makes_no_sense_is_refused_before_anything_is_written(
    bank: SqlBank, field: str, value: object, message: str
) -> None:
    with pytest.raises(BankError, match=message):
        bank.add_trajectory(make_trajectory(steps=[make_step(0), make_step(1, **{field: value})]))
    assert bank.scopes() == []


def test_steps_out_of_order_are_refused(bank: SqlBank) -> None:
    with pytest.raises(BankError, match="do not rise"):
        bank.add_trajectory(make_trajectory(steps=[make_step(1), make_step(0)]))


def test_trajectory_cannot_be_stored_as_labelled(bank: SqlBank) -> None:
    with pytest.raises(BankError, match="labelled"):
        bank.add_trajectory(make_trajectory(), status="labelled")


def test_seed_beyond_64_bits_is_refused(bank: SqlBank) -> None:
    bank.add_trajectory(make_trajectory())
    claim = bank.claim(KEY)
    assert claim is not None
    with pytest.raises(BankError, match="seed"):
        bank.commit_labels(claim, [StepLabel(0, True, 1.0, (Vote(True, 2**63),))], "test")
    assert bank.commit_labels(claim, [StepLabel(0, True, 1.0, (Vote(True, 2**63 - 1),))], "test") == 1


def test_two_private_banks_in_memory_share_nothing() -> None:
    first, second = SqlBank("memory:"), SqlBank("memory:")
    bank_episode(first, make_trajectory())
    assert second.revision("scope") == 0
    assert first.bank_id != second.bank_id
    assert first.new_run() == second.new_run() == "run-1"
    first.close()
    second.close()
    with pytest.raises(BankError, match="was closed"):
        first.revision("scope")
