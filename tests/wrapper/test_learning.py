from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import pytest
from wrapper_parts import ScriptedTextEnv, TableCritic

from ceb_gym import ConfidenceWrapper
from ceb_gym.bank.store import SqlBank
from ceb_gym.errors import BankError

SCOPE = "ScriptedTextEnv"


def play(env: gym.Env[Any, Any], actions: str = "abc") -> None:
    env.reset()
    for action in actions:
        env.step(action)


def test_finished_episode_is_labelled_before_step_returns(wrap: Any) -> None:
    env = wrap(ScriptedTextEnv((0.0, 0.5, 1.0)))
    play(env)
    found = env.bank.records(SCOPE)
    assert [(record.action, record.label, record.confidence, record.agrees) for record in found] == [
        ("a", False, 0.9, False),
        ("b", True, 0.9, True),
        ("c", True, 0.9, True),
    ]
    assert {record.labeler for record in found} == {"reward_level?first_baseline=0"}


def test_unscored_steps_are_banked_without_confidence_and_agreement(wrap: Any) -> None:
    env = wrap()
    env.reset()
    for action in ("unknown", "b", "c"):
        env.step(action)
    first = env.bank.records(SCOPE)[0]
    assert (first.action, first.confidence, first.agrees) == ("unknown", None, None)


def test_revision_is_pinned_at_reset_and_constant_for_the_episode(tmp_path: Any, critic: TableCritic) -> None:
    bank = f"{tmp_path}/bank.db"
    first = ConfidenceWrapper(ScriptedTextEnv(), critic=critic, bank=bank, labeler="reward_level")
    second = ConfidenceWrapper(ScriptedTextEnv(), critic=critic, bank=bank, labeler="reward_level")
    first.reset()
    play(second)
    assert first.step("a")[4]["ceb"]["bank_revision"] == 0
    assert second.reset()[1]["ceb"]["bank_revision"] == 1
    first.close()
    second.close()


def test_nothing_of_the_running_episode_is_ever_retrieved(wrap: Any, critic: TableCritic) -> None:
    env = wrap(ScriptedTextEnv((0.0, 0.5, 0.5, 1.0)), segment_steps=2)
    for _ in range(3):
        play(env, "abab")
    for query, precedents in critic.seen:
        for found in (*precedents.productive, *precedents.unproductive):
            assert found.record.episode_id != query.episode_id
    assert any(precedents.productive for _, precedents in critic.seen)


@pytest.mark.parametrize("labeler", ["reward_level", "success?reward_above=0.9", "return:0.9"])
def test_long_episodes_give_the_same_records_in_segments(labeler: str, critic: TableCritic) -> None:
    found = []
    for segment_steps in (500, 3):
        env = ConfidenceWrapper(
            ScriptedTextEnv([0.1, 0.3, 0.3, 0.5, 0.5, 0.7, 0.9, 1.0]),
            critic=critic,
            labeler=labeler,
            segment_steps=segment_steps,
        )
        play(env, "abcdefgh")
        play(env, "abcdefgh")
        found.append([(r.step_index, r.action, r.label, r.vote_share) for r in env.bank.records(SCOPE)])
        assert env.bank.pending() == []
        env.close()
    assert found[0] == found[1] and len(found[0]) >= 8


def test_records_of_a_segment_are_visible_to_others_before_the_episode_ends(wrap: Any) -> None:
    env = wrap(ScriptedTextEnv([0.1] * 8), segment_steps=3)
    env.reset()
    for action in "abcd":
        env.step(action)
    assert [record.action for record in env.bank.records(SCOPE)] == ["a", "b"]


@pytest.mark.parametrize(
    ("early_reset", "held", "records"), [("hold", 1, 0), ("label", 0, 2), ("drop", 0, 0)]
)
def test_early_reset(early_reset: str, held: int, records: int, wrap: Any) -> None:
    env = wrap(early_reset=early_reset)
    play(env, "ab")
    env.reset()
    assert len(env.bank.pending(held=True)) == held
    assert len(env.bank.records(SCOPE)) == records


def test_reset_without_a_step_leaves_nothing(wrap: Any) -> None:
    env = wrap()
    env.reset()
    env.reset()
    assert env.bank.pending(held=True) == []


def test_environment_that_raises_keeps_the_trajectory_as_abandoned(wrap: Any) -> None:
    env = wrap(ScriptedTextEnv((0.0, 0.5, 1.0), fail_at=1))
    env.reset()
    env.step("a")
    with pytest.raises(OSError, match="the terminal is gone"):
        env.step("b")
    trajectory = env.bank.episode(env.episode_id)
    assert trajectory.ending == "abandoned"
    assert [(step.action, step.executed, step.outcome) for step in trajectory.steps] == [
        ("a", True, "screen 1"),
        ("b", True, None),
    ]
    assert "OSError: the terminal is gone" in trajectory.steps[1].reason
    assert env.bank.records(SCOPE) == []
    env.unwrapped.fail_at = None
    play(env)
    assert len(env.bank.records(SCOPE)) == 3


def test_close_commits_what_the_background_has_not_labelled_yet(tmp_path: Any, critic: TableCritic) -> None:
    import threading

    started, may_label = threading.Event(), threading.Event()

    def slow(trajectory: Any) -> list[bool]:
        started.set()
        assert may_label.wait(20)
        return [True] * len(trajectory.steps)

    url = f"sqlite:///{tmp_path}/bank.db"
    env = ConfidenceWrapper(ScriptedTextEnv(), critic=critic, bank=url, labeler=slow, learn="background")
    play(env)
    assert started.wait(20)
    assert env.bank.records(SCOPE) == []
    may_label.set()
    env.close()
    bank = SqlBank(url)
    assert len(bank.records(SCOPE)) == 3
    bank.close()


def test_labeler_that_fails_leaves_the_episode_pending_and_the_step_whole(wrap: Any) -> None:
    def broken(trajectory: Any) -> list[bool]:
        raise RuntimeError("no verdict today")

    env = wrap(labeler=broken)
    env.reset()
    env.step("a")
    env.step("b")
    with pytest.warns(RuntimeWarning, match="no verdict today.*ceb bank label"):
        observation, _, terminated, _, _ = env.step("c")
    assert (observation, terminated) == ("screen 3", True)
    assert len(env.bank.pending()) == 1


def test_labeler_none_keeps_episodes_for_later(wrap: Any) -> None:
    env = wrap(labeler="none")
    play(env)
    assert len(env.bank.pending()) == 1 and env.bank.records(SCOPE) == []


def test_learning_off_writes_nothing(tmp_path: Any, wrap: Any, critic: TableCritic) -> None:
    path = tmp_path / "bank.db"
    first = wrap(bank=str(path))
    play(first)
    first.close()
    before = path.read_bytes()
    env = wrap(bank=str(path), learn="off", labeler=None)
    play(env)
    assert critic.seen[-1][1].revision == 1
    env.close()
    assert path.read_bytes() == before


def test_as_of_uses_an_older_revision(tmp_path: Any, wrap: Any) -> None:
    path = f"{tmp_path}/bank.db"
    env = wrap(bank=path)
    play(env)
    play(env)
    old = wrap(bank=path, learn="off", labeler=None, as_of=1)
    assert old.reset()[1]["ceb"]["bank_revision"] == 1
    assert env.reset()[1]["ceb"]["bank_revision"] == 2


def test_scope_template_keeps_users_apart(tmp_path: Any, wrap: Any, critic: TableCritic) -> None:
    bank = f"{tmp_path}/bank.db?scope={{env_id}}/{{user}}"
    ann = wrap(bank=bank, scope_fields={"user": "ann"})
    bob = wrap(bank=bank, scope_fields={"user": "bob"})
    play(ann)
    bob.reset()
    bob.step("a")
    assert critic.seen[-1][1].productive == () and critic.seen[-1][1].unproductive == ()
    ann.reset()
    ann.step("a")
    assert len(critic.seen[-1][1].productive) == 2


def test_read_scopes_serve_precedents_of_other_scopes(tmp_path: Any, wrap: Any, critic: TableCritic) -> None:
    play(wrap(bank=f"{tmp_path}/bank.db?scope=teacher"))
    pupil = wrap(bank=f"{tmp_path}/bank.db?scope=pupil&read_scopes=teacher")
    pupil.reset()
    pupil.step("a")
    assert {found.record.scope for found in critic.seen[-1][1].productive} == {"teacher"}


def test_hostile_text_and_rewards_are_stored_and_pass_through(wrap: Any) -> None:
    class Hostile(ScriptedTextEnv):
        def step(self, action: str) -> Any:
            _, _, terminated, truncated, info = super().step(action)
            return "x" * 1_000_000 + "\x00\ud800", math.nan, terminated, truncated, info

    env = wrap(Hostile(), labeler="success?reward_above=0")
    env.reset()
    observation, reward, *_ = env.step("\x00\udfff" + "y" * 1_000_000)
    assert len(observation) == 1_000_002 and math.isnan(reward)
    env.step("b")
    env.step("c")
    steps = env.bank.episode(env.episode_id).steps
    assert steps[0].reward is None and "nan" in steps[0].reason
    assert "characters cut" in steps[0].action and "characters cut" in steps[0].outcome
    assert "\x00" not in steps[0].action + steps[0].outcome


def test_success_is_read_from_the_last_info(wrap: Any) -> None:
    class Succeeds(ScriptedTextEnv):
        def step(self, action: str) -> Any:
            *rest, _ = super().step(action)
            return (*rest, {"is_success": True} if rest[2] else {})

    env = wrap(Succeeds(), labeler="success")
    play(env)
    assert [record.label for record in env.bank.records("Succeeds")] == [True, True, True]


def test_same_seed_same_run_id_and_clock_give_the_same_records(critic: TableCritic) -> None:
    found = []
    for _ in range(2):
        ticks = iter(range(1000))
        env = ConfidenceWrapper(
            gym.make("FrozenLake-v1"),
            critic="neighbors",
            labeler="success?reward_above=0",
            run_id="run",
            clock=lambda ticks=ticks: float(next(ticks)),
        )
        env.action_space.seed(4)
        for episode in range(8):
            env.reset(seed=4 if episode == 0 else None)
            while not any(env.step(env.action_space.sample())[2:4]):
                pass
        found.append(env.bank.records("FrozenLake-v1"))
        env.close()
    assert found[0] == found[1] and len(found[0]) > 20


def test_a_run_id_used_twice_loses_no_episode(tmp_path: Any, wrap: Any) -> None:
    path = f"{tmp_path}/bank.db"
    first = wrap(bank=path, run_id="mine")
    play(first, "abc")
    first.close()
    second = wrap(bank=path, run_id="mine")
    second.reset()
    second.step("d")
    second.step("e")
    with pytest.warns(RuntimeWarning, match="stored as mine-0-000000~2"):
        second.step("f")
    assert [record.action for record in second.bank.records(SCOPE)] == list("abcdef")


def test_journal_notes_each_step_before_it_runs(tmp_path: Any, wrap: Any) -> None:
    class Dies(ScriptedTextEnv):
        def step(self, action: str) -> Any:
            if action == "boom":
                noted.extend(bank.intents())
            return super().step(action)

    noted: list[Any] = []
    path = f"sqlite:///{tmp_path}/bank.db"
    env = wrap(Dies(), bank=path, journal="step")
    bank = SqlBank(path)
    env.reset()
    env.step("a")
    env.step("boom")
    assert [intent.action for intent in noted] == ["a", "boom"]
    env.step("c")
    assert bank.intents() == []
    bank.close()


def test_full_disk_warns_and_the_episode_is_stored_once_there_is_room(
    wrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = wrap()
    env.reset()
    bank = env.bank
    store, full = bank.add_trajectory, True

    def add(*arguments: Any, **keywords: Any) -> None:
        if full:
            raise BankError("The disk is full.")
        store(*arguments, **keywords)

    monkeypatch.setattr(bank, "add_trajectory", add)
    env.step("a")
    env.step("b")
    with pytest.warns(RuntimeWarning, match="The disk is full"):
        assert env.step("c")[2]
    full = False
    play(env, "def")
    assert [record.action for record in bank.records(SCOPE)] == list("abcdef")


def test_a_bank_object_is_used_and_left_open(wrap: Any) -> None:
    bank = SqlBank("memory:")
    env = wrap(bank=bank)
    play(env)
    env.close()
    assert len(bank.records(SCOPE)) == 3
    bank.close()


def test_bin_edges_of_unbounded_boxes_are_frozen_in_the_bank(tmp_path: Any) -> None:
    path = f"{tmp_path}/bank.db"
    env = ConfidenceWrapper(gym.make("CartPole-v1"), critic="constant", labeler="return:0.9", bank=path)
    for episode in range(30):
        env.reset(seed=episode)
        while not any(env.step(episode % 2)[2:4]):
            pass
    env.reset(seed=0)
    words = env.assess(0).query.state
    env.close()
    again = ConfidenceWrapper(gym.make("CartPole-v1"), critic="constant", learn="off", bank=path)
    again.reset(seed=0)
    assert "_q8_" in words and again.assess(0).query.state == words
    again.close()
