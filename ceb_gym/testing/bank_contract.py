"""What every bank must do, as a suite to inherit from."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from ceb_gym.errors import BankConflictError, BankError
from ceb_gym.protocols import Bank
from ceb_gym.testing.samples import ManualClock, bank_episode, make_labels, make_step, make_trajectory
from ceb_gym.types import StepLabel, TrajectoryKey, Vote


class BankContract:
    """What every `Bank` must hold. Give the fixture `bank`: a fresh, empty bank that reads `clock`."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock that the bank must read."""
        return ManualClock()

    @pytest.fixture
    def bank(self, clock: ManualClock) -> Iterator[Bank]:
        """A fresh, empty bank; closed afterwards."""
        raise NotImplementedError("Override the fixture `bank` to yield a fresh, empty bank.")

    # Trajectories

    def test_it_is_a_bank(self, bank: Bank) -> None:
        assert isinstance(bank, Bank)

    def test_episode_comes_back_as_it_was_stored(self, bank: Bank) -> None:
        deferred = make_step(1, outcome=None, reward=None, executed=False, decision="defer", reason="low")
        unscored = make_step(
            2, confidence=None, features={"a": 0.5, "b": -2.0}, rationale="why", propensity=0.1
        )
        trajectory = make_trajectory(
            steps=[make_step(0), deferred, unscored], initial_reward=0.25, success=None
        )
        bank.add_trajectory(trajectory)
        assert bank.episode("episode") == trajectory

    def test_storing_the_same_twice_does_nothing(self, bank: Bank) -> None:
        bank_episode(bank, make_trajectory())
        bank.add_trajectory(make_trajectory())
        assert bank.pending() == []
        assert len(bank.records("scope")) == 3

    def test_other_content_under_the_same_key_is_refused(self, bank: Bank) -> None:
        bank.add_trajectory(make_trajectory())
        with pytest.raises(BankConflictError, match="other content"):
            bank.add_trajectory(make_trajectory(task="another task"))
        assert bank.episode("episode") == make_trajectory()

    def test_unknown_episode_is_an_error(self, bank: Bank) -> None:
        with pytest.raises(BankError, match="nowhere"):
            bank.episode("nowhere")

    def test_pending_lists_oldest_first_and_by_scope(self, bank: Bank) -> None:
        for name, scope in (("b", "scope"), ("a", "other"), ("c", "scope")):
            bank.add_trajectory(make_trajectory(name, scope=scope))
        assert bank.pending() == [("b", 0), ("a", 0), ("c", 0)]
        assert bank.pending("scope") == [("b", 0), ("c", 0)]

    def test_held_trajectory_waits_only_when_asked_for(self, bank: Bank) -> None:
        bank.add_trajectory(make_trajectory(), status="held")
        assert bank.pending() == []
        assert bank.pending(held=True) == [("episode", 0)]
        assert bank.claim(TrajectoryKey("episode", 0)) is not None

    def test_open_segments_wait_from_the_end_of_their_episode_on(self, bank: Bank) -> None:
        first = make_trajectory(steps=[make_step(0), make_step(1)], ending="segmented")
        bank.add_trajectory(first, status="open")
        assert bank.pending(held=True) == []
        assert bank.claim(TrajectoryKey("episode", 0)) is None
        bank.add_trajectory(make_trajectory(steps=[make_step(2)], segment=1))
        assert bank.pending() == [("episode", 0), ("episode", 1)]

    def test_open_segments_are_held_when_their_episode_is(self, bank: Bank) -> None:
        bank.add_trajectory(make_trajectory(ending="segmented"), status="open")
        bank.add_trajectory(make_trajectory(steps=[make_step(3)], segment=1), status="held")
        assert bank.pending() == []
        assert bank.pending(held=True) == [("episode", 0), ("episode", 1)]

    def test_segments_are_read_as_one_episode(self, bank: Bank) -> None:
        bank.add_trajectory(make_trajectory(steps=[make_step(0), make_step(1)], ending="segmented"))
        bank.add_trajectory(make_trajectory(steps=[make_step(2)], segment=1))
        assert bank.episode("episode") == make_trajectory(steps=3)
        assert bank.episode("episode", until_segment=0).ending == "segmented"
        assert len(bank.episode("episode", until_segment=0).steps) == 2

    def test_journal_is_never_banked(self, bank: Bank) -> None:
        bank.journal(make_trajectory(steps=0, ending="abandoned"), make_step(0, outcome=None, reward=None))
        assert bank.pending(held=True) == []
        assert bank.revision("scope") == 0

    # Claims

    def test_claim_is_exclusive_until_it_runs_out(self, bank: Bank, clock: ManualClock) -> None:
        bank.add_trajectory(make_trajectory())
        key = TrajectoryKey("episode", 0)
        assert bank.claim(key, lease_s=60) is not None
        clock.advance(59)
        assert bank.claim(key, lease_s=60) is None
        clock.advance(1)
        assert bank.claim(key, lease_s=60) is not None

    def test_released_claim_is_free_at_once(self, bank: Bank) -> None:
        bank.add_trajectory(make_trajectory())
        key = TrajectoryKey("episode", 0)
        claim = bank.claim(key)
        assert claim is not None
        bank.release(claim)
        assert bank.claim(key) is not None

    def test_lost_claim_writes_nothing(self, bank: Bank, clock: ManualClock) -> None:
        trajectory = make_trajectory()
        bank.add_trajectory(trajectory)
        key = TrajectoryKey("episode", 0)
        lost = bank.claim(key, lease_s=60)
        clock.advance(61)
        held = bank.claim(key)
        assert lost is not None and held is not None
        assert bank.commit_labels(lost, make_labels(trajectory), "slow") is None
        bank.release(lost)
        assert bank.records("scope") == []
        assert bank.commit_labels(held, make_labels(trajectory), "fast") == 1
        assert {record.labeler for record in bank.records("scope")} == {"fast"}

    def test_late_claim_that_nobody_took_over_still_counts(self, bank: Bank, clock: ManualClock) -> None:
        bank.add_trajectory(make_trajectory())
        claim = bank.claim(TrajectoryKey("episode", 0), lease_s=60)
        clock.advance(3600)
        assert claim is not None
        assert bank.commit_labels(claim, make_labels(make_trajectory()), "slow") == 1

    def test_labelled_trajectory_cannot_be_claimed(self, bank: Bank) -> None:
        bank_episode(bank, make_trajectory())
        assert bank.claim(TrajectoryKey("episode", 0)) is None
        assert bank.pending(held=True) == []

    def test_claim_of_an_unknown_trajectory_is_an_error(self, bank: Bank) -> None:
        with pytest.raises(BankError, match="nowhere"):
            bank.claim(TrajectoryKey("nowhere", 0))

    # Records

    def test_record_holds_the_step_and_its_label(self, bank: Bank) -> None:
        trajectory = make_trajectory(steps=[make_step(0, features={"x": 1.5}, repeated=True)])
        votes = (Vote(True, 1, "m", "yes"), Vote(False, 2, "m", "no"), Vote(None, 3, "m", "?"), Vote(True, 4))
        bank_episode(bank, trajectory, [StepLabel(0, True, 2 / 3, votes)])
        (record,) = bank.records("scope")
        assert record.record_id == "episode:0:1"
        assert (record.scope, record.episode_id, record.step_index) == ("scope", "episode", 0)
        assert (record.task, record.state, record.action) == ("find the file", "state 0", "act 0")
        assert (record.outcome, record.label, record.vote_share, record.votes) == (
            "outcome 0",
            True,
            2 / 3,
            3,
        )
        assert (record.confidence, record.agrees, record.repeated) == (0.75, True, True)
        assert (record.critic, record.labeler, record.created_at) == ("constant:0.75", "test", 500.0)
        assert dict(record.features) == {"x": 1.5}

    def test_unexecuted_and_unlabelled_steps_are_never_banked(self, bank: Bank) -> None:
        steps = [
            make_step(0),
            make_step(1, executed=False, outcome=None, reward=None),
            make_step(2),
            make_step(3),
        ]
        labels = [StepLabel(0, True, 1.0), StepLabel(1, True, 1.0), StepLabel(2, None)]
        bank_episode(bank, make_trajectory(steps=steps), labels)
        assert [record.step_index for record in bank.records("scope")] == [0]

    def test_unscored_step_is_banked_without_confidence_and_agreement(self, bank: Bank) -> None:
        bank_episode(bank, make_trajectory(steps=[make_step(0, confidence=None)]))
        (record,) = bank.records("scope")
        assert record.confidence is None
        assert record.agrees is None

    def test_score_of_one_half_agrees_with_productive(self, bank: Bank) -> None:
        steps = [make_step(0, confidence=0.5), make_step(1, confidence=0.5)]
        bank_episode(bank, make_trajectory(steps=steps))
        assert [record.agrees for record in bank.records("scope")] == [True, False]

    def test_only_labels_of_the_claimed_segment_count(self, bank: Bank) -> None:
        bank.add_trajectory(make_trajectory(steps=[make_step(0)], ending="segmented"))
        bank_episode(bank, make_trajectory(steps=[make_step(1)], segment=1), make_labels(make_trajectory()))
        assert [record.record_id for record in bank.records("scope")] == ["episode:1:1"]

    def test_episode_without_records_is_closed_without_a_revision(self, bank: Bank) -> None:
        assert bank_episode(bank, make_trajectory("first")) == 1
        assert bank_episode(bank, make_trajectory("second"), []) == 1
        assert bank.pending() == []
        assert bank.revision("scope") == 1

    def test_two_labels_for_one_step_are_refused(self, bank: Bank) -> None:
        bank.add_trajectory(make_trajectory())
        claim = bank.claim(TrajectoryKey("episode", 0))
        assert claim is not None
        with pytest.raises(BankError, match="two labels"):
            bank.commit_labels(claim, [StepLabel(0, True, 1.0), StepLabel(0, False, 0.0)], "test")
        assert bank.revision("scope") == 0

    def test_revisions_count_up_from_one_in_each_scope(self, bank: Bank) -> None:
        assert bank.revision("scope") == 0
        assert [bank_episode(bank, make_trajectory(name)) for name in "abc"] == [1, 2, 3]
        assert bank_episode(bank, make_trajectory("d", scope="other")) == 1
        assert bank.revision("scope") == 3

    def test_records_come_in_commit_order_between_revisions(self, bank: Bank) -> None:
        for name in "cab":
            bank_episode(bank, make_trajectory(name, 2))
        ids = [record.record_id for record in bank.records("scope")]
        assert ids == ["c:0:1", "c:1:1", "a:0:1", "a:1:1", "b:0:1", "b:1:1"]
        assert [record.record_id for record in bank.records("scope", since=1, until=2)] == ids[2:4]

    def test_nothing_of_one_scope_is_read_in_another(self, bank: Bank) -> None:
        bank_episode(bank, make_trajectory("a", scope="mine"))
        bank_episode(bank, make_trajectory("b", scope="mine/not"))
        assert {record.scope for record in bank.records("mine")} == {"mine"}
        assert {record.scope for record in bank.changes("mine", 0, 1).added} == {"mine"}
        assert bank.past_rewards("mine", 10) == [(0.0, 1.0, 2.0)]
        assert bank.records("min_") == bank.records("mine%") == []

    def test_records_are_found_by_id(self, bank: Bank) -> None:
        bank_episode(bank, make_trajectory())
        found = bank.records_by_id(["episode:2:1", "episode:0:1", "nowhere:0:1"])
        assert found == {
            record.record_id: record for record in bank.records("scope") if record.step_index != 1
        }
        assert bank.records_by_id([]) == {}

    def test_thousands_of_ids_are_found_at_once(self, bank: Bank) -> None:
        bank_episode(bank, make_trajectory(steps=3))
        ids = [f"nowhere:{number}:1" for number in range(3000)] + ["episode:1:1"]
        assert list(bank.records_by_id(ids)) == ["episode:1:1"]

    def test_changes_equal_the_records_that_were_added(self, bank: Bank) -> None:
        for name in "abc":
            bank_episode(bank, make_trajectory(name))
        changes = bank.changes("scope", 1, 3)
        assert list(changes.added) == bank.records("scope", since=1)
        assert changes.removed == ()
        assert bank.changes("scope", 2, 2).added == ()

    def test_digest_tells_content_and_order_apart(self, bank: Bank) -> None:
        for name, scope in (("a", "one"), ("b", "one"), ("c", "two")):
            bank_episode(bank, make_trajectory(name, scope=scope))
        assert bank.digest("one", 0) == bank.digest("unknown", 0) == ""
        digests = {bank.digest("one", 1), bank.digest("one", 2), bank.digest("two", 1)}
        assert len(digests) == 3
        with pytest.raises(BankError, match="revision 3"):
            bank.digest("one", 3)

    # Past rewards

    def test_past_rewards_are_of_finished_episodes_and_executed_steps(self, bank: Bank) -> None:
        unexecuted = make_step(1, executed=False, outcome=None, reward=None)
        bank.add_trajectory(make_trajectory("first", [make_step(0, reward=0.5), unexecuted, make_step(2)]))
        bank.add_trajectory(make_trajectory("cut", 2, ending="abandoned"))
        bank.add_trajectory(make_trajectory("second", 2, ending="truncated"), status="held")
        assert bank.past_rewards("scope", 10) == [(0.0, 1.0), (0.5, 2.0)]
        assert bank.past_rewards("scope", 1) == [(0.0, 1.0)]
        assert bank.past_rewards("scope", 0) == []

    def test_past_rewards_join_the_segments_of_an_episode(self, bank: Bank) -> None:
        bank.add_trajectory(make_trajectory("long", [make_step(0), make_step(1)], ending="segmented"))
        assert bank.past_rewards("scope", 10) == []
        bank.add_trajectory(make_trajectory("short", 1))
        bank.add_trajectory(make_trajectory("long", [make_step(2)], segment=1))
        assert bank.past_rewards("scope", 10) == [(0.0, 1.0, 2.0), (0.0,)]

    def test_past_rewards_before_an_episode_leave_it_and_later_ones_out(self, bank: Bank) -> None:
        for number, name in enumerate("abc", start=1):
            bank.add_trajectory(make_trajectory(name, number))
        assert bank.past_rewards("scope", 10, before="b") == [(0.0,)]
        assert bank.past_rewards("scope", 10, before="a") == []

    # Settings and runs

    def test_first_writer_of_a_setting_wins(self, bank: Bank) -> None:
        assert bank.setting("scope", "edges") is None
        assert bank.put_setting("scope", "edges", "[1, 2]") == "[1, 2]"
        assert bank.put_setting("scope", "edges", "[3]") == "[1, 2]"
        assert bank.setting("scope", "edges") == "[1, 2]"
        assert bank.setting("other", "edges") is None

    def test_run_ids_never_repeat(self, bank: Bank) -> None:
        assert len({bank.new_run() for _ in range(5)}) == 5

    # Hostile content

    def test_text_is_cleaned_of_what_cannot_be_stored(self, bank: Bank) -> None:
        steps = [make_step(0, state="a\x00b", action="\ud800", outcome="\udfff!")]
        bank_episode(bank, make_trajectory(steps=steps, task="\x00"))
        (record,) = bank.records("scope")
        assert (record.task, record.state, record.action) == ("\ufffd", "a\ufffdb", "\ufffd")
        assert record.outcome == "\ufffd!"

    @pytest.mark.parametrize("name", ["a\x00b", "\ud800", "x" * 301])
    def test_scope_that_cannot_be_stored_is_refused(self, bank: Bank, name: str) -> None:
        with pytest.raises(BankError, match="Scope"):
            bank.add_trajectory(make_trajectory(scope=name))

    @pytest.mark.parametrize(
        "text", ["'; DROP TABLE record; --", '"%_\\', ":name ?", "\U0001f600\u2028\r\n", ""]
    )
    def test_special_characters_come_back_unchanged(self, bank: Bank, text: str) -> None:
        trajectory = make_trajectory(
            text, [make_step(0, state=text, action=text, outcome=text)], scope=text, task=text
        )
        bank_episode(bank, trajectory)
        (record,) = bank.records(text)
        assert (record.state, record.action, record.outcome, record.task) == (text,) * 4
        assert bank.records_by_id([f"{text}:0:1"]) == {f"{text}:0:1": record}

    def test_texts_of_a_million_characters_come_back(self, bank: Bank) -> None:
        long = "äb" * 500_000
        bank_episode(bank, make_trajectory(steps=[make_step(0, state=long, action=long, outcome=long)]))
        (record,) = bank.records("scope")
        assert record.state == record.action == record.outcome == long

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("field", ["reward", "confidence", "propensity"])
    def test_number_that_is_not_finite_is_refused(self, bank: Bank, field: str, bad: float) -> None:
        with pytest.raises(BankError, match=field):
            bank.add_trajectory(make_trajectory(steps=[make_step(0), make_step(1, **{field: bad})]))
        assert bank.pending() == []

    def test_vote_share_that_is_not_finite_is_refused(self, bank: Bank) -> None:
        bank.add_trajectory(make_trajectory())
        claim = bank.claim(TrajectoryKey("episode", 0))
        assert claim is not None
        with pytest.raises(BankError, match="vote share"):
            bank.commit_labels(claim, [StepLabel(0, True, math.nan)], "test")
        assert bank.records("scope") == []
