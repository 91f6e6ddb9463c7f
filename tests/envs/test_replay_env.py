import importlib
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import ceb_envs
from ceb_envs.replay import ReplayEnv
from ceb_gym.errors import ConfigurationError, StreamError, UsageError
from ceb_gym.streams import RecordedEpisode, RecordedStep, StreamHeader, read_stream, write_stream

INFO_KEYS = {"task", "episode", "outcome", "action_matches", "initial_reward", "success"}


def make(stream: str, **arguments: object) -> gymnasium.Env:
    return gymnasium.make("ceb_envs:ceb/Replay-v0", stream=stream, **arguments)


def played(env: gymnasium.Env, n_episodes: int, seed: int | None = None) -> list[str]:
    names = []
    for number in range(n_episodes):
        _, info = env.reset(seed=seed if number == 0 else None)
        names.append(info["episode"])
        ended = False
        while not ended:
            _, _, ended, _, _ = env.step("x")
    return names


def test_whole_stream_plays_back_as_recorded(stream_path: str) -> None:
    env = make(stream_path)
    for episode in read_stream(stream_path):
        observation, info = env.reset()
        assert (info["task"], info["episode"]) == (episode.task, episode.episode_id)
        for index, step in enumerate(episode.steps):
            assert observation == step.state
            assert env.unwrapped.recorded_action() == step.action
            assert env.unwrapped.recorded_logprobs() == step.logprobs
            observation, reward, terminated, truncated, info = env.step(step.action)
            assert (reward, info["outcome"], info["action_matches"]) == (step.reward, step.outcome, True)
            assert (terminated, truncated) == (index == len(episode.steps) - 1, False)
        assert observation == episode.steps[-1].outcome


def test_other_action_gets_the_recorded_outcome_and_is_told_apart(stream_path: str) -> None:
    env = make(stream_path)
    env.reset()
    _, reward, _, _, info = env.step("something else")
    assert (reward, info["outcome"], info["action_matches"]) == (0.0, "out 0.0", False)


def test_info_has_the_same_keys_and_types_at_every_reset_and_step(stream_path: str) -> None:
    env = make(stream_path)
    kinds = []
    for _ in range(6):
        _, info = env.reset()
        kinds.append({key: type(value) for key, value in info.items()})
        ended = False
        while not ended:
            _, _, ended, _, info = env.step("x")
            kinds.append({key: type(value) for key, value in info.items()})
    assert set(kinds[0]) == INFO_KEYS
    assert all(kind == kinds[0] for kind in kinds)


def test_nothing_of_the_future_is_in_observation_or_info(tmp_path: Path) -> None:
    steps = (
        RecordedStep("visible", "SECRET action", "seen", 0.125, label=True, metadata={"x": "SECRET"}),
        RecordedStep("seen", "SECRET next", "SECRET end", 0.25, label=False),
    )
    run = RecordedEpisode("id", "task", steps, success=True, metadata={"gold": "SECRET"})
    write_stream(tmp_path / "f", StreamHeader("e"), [run])
    env = make(str(tmp_path / "f"))
    for observation, info in (env.reset(), env.step("x")[::4]):
        assert "SECRET" not in repr((observation, info))
        assert info["success"] is False
        assert 0.25 not in info.values()
        assert not any("label" in key or "step" in key or "length" in key for key in info)


def test_success_is_told_at_the_end_only(stream_path: str) -> None:
    env = make(stream_path)
    told = []
    _, info = env.reset(options={"episode": "run/1"})
    told.append(info["success"])
    for _ in range(2):
        *_, info = env.step("x")
        told.append(info["success"])
    assert told == [False, False, True]


def test_facts_that_not_all_episodes_state_are_left_out_of_info(tmp_path: Path) -> None:
    step = RecordedStep("", "a", "o", 0.0)
    runs = [RecordedEpisode("1", "q", (step,), 0.5, True), RecordedEpisode("2", "q", (step,))]
    write_stream(tmp_path / "f", StreamHeader("e"), runs)
    env = make(str(tmp_path / "f"))
    for _ in range(2):
        _, info = env.reset()
        assert set(info) == INFO_KEYS - {"initial_reward", "success"}


def test_file_order_goes_on_and_wraps_around(stream_path: str) -> None:
    assert played(make(stream_path), 8) == [f"run/{n}" for n in (0, 1, 2, 3, 4, 5, 0, 1)]


def test_seed_starts_the_order_anew(stream_path: str) -> None:
    env = make(stream_path)
    played(env, 2)
    assert played(env, 2, seed=5) == ["run/0", "run/1"]


def test_shuffled_order_is_a_permutation_that_the_seed_fixes(stream_path: str) -> None:
    env = make(stream_path, order="shuffled")
    first = played(env, 12, seed=11)
    assert sorted(first[:6]) == [f"run/{n}" for n in range(6)]
    assert first[6:] == first[:6]
    assert played(make(stream_path, order="shuffled"), 12, seed=11) == first
    assert len({tuple(played(env, 6, seed=seed)) for seed in range(10)}) > 5


def test_episode_can_be_chosen_without_moving_the_order(stream_path: str) -> None:
    env = make(stream_path)
    env.reset()
    assert env.reset(options={"episode": 4})[1]["episode"] == "run/4"
    assert env.reset(options={"episode": "run/2"})[1]["episode"] == "run/2"
    assert env.reset()[1]["episode"] == "run/1"


@pytest.mark.parametrize("wanted", [6, -1, "run/9", 1.0, True, [0]])
def test_episode_that_does_not_exist_is_refused(stream_path: str, wanted: object) -> None:
    env = make(stream_path)
    with pytest.raises(ConfigurationError, match="positions 0 to 5 and ids such as 'run/0'"):
        env.reset(options={"episode": wanted})


def test_reset_in_the_middle_abandons_the_episode(stream_path: str) -> None:
    env = make(stream_path)
    env.reset(options={"episode": 2})
    env.step("x")
    observation, info = env.reset()
    assert (observation, info["episode"], info["outcome"]) == ("", "run/0", "")


def test_reference_labels_are_kept_until_the_episode_has_ended(stream_path: str) -> None:
    env = make(stream_path)
    with pytest.raises(UsageError, match="before the episode's end"):
        env.unwrapped.reference_labels()
    env.reset(options={"episode": 2})
    for _ in range(3):
        with pytest.raises(UsageError, match="before the episode's end"):
            env.unwrapped.reference_labels()
        env.step("x")
    assert env.unwrapped.reference_labels() == (True, False, True)
    env.reset()
    with pytest.raises(UsageError, match="before the episode's end"):
        env.unwrapped.reference_labels()


def test_calls_outside_an_episode_are_refused(stream_path: str) -> None:
    env = ReplayEnv(stream_path)
    for call in (lambda: env.step("x"), env.recorded_action, env.recorded_logprobs):
        with pytest.raises(UsageError, match="call reset first"):
            call()
    env.reset()
    env.step("x")
    for call in (lambda: env.step("x"), env.recorded_action, env.recorded_logprobs):
        with pytest.raises(UsageError, match="'run/0' has ended"):
            call()


def test_header_is_readable(stream_path: str) -> None:
    env = make(stream_path).unwrapped
    assert (env.label_rule, env.recorded_env_id, env.n_episodes) == (
        "reward_level?first_baseline=0",
        "recorded-env",
        6,
    )


@pytest.mark.parametrize("order", ["file", "shuffled"])
def test_gymnasium_check_passes(stream_path: str, order: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(stream_path, order=order, render_mode="ansi").unwrapped)


def test_spec_keeps_every_argument(stream_path: str) -> None:
    env = make(stream_path, order="shuffled", render_mode="ansi")
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        twin = gymnasium.make(spec)
        assert twin.spec.kwargs == {"stream": stream_path, "order": "shuffled", "render_mode": "ansi"}
        assert played(twin, 6, seed=3) == played(env, 6, seed=3)


def test_time_limit_truncates_a_replay(stream_path: str) -> None:
    env = make(stream_path, max_episode_steps=2)
    env.reset(options={"episode": 2})
    assert env.step("x")[2:4] == (False, False)
    assert env.step("x")[2:4] == (False, True)


def test_render_shows_what_happened_but_not_the_labels(stream_path: str) -> None:
    env = make(stream_path, render_mode="ansi")
    env.reset(options={"episode": 1})
    assert "task 1" in env.render()
    env.step("rm -r $x")
    text = env.render()
    assert "> rm -r $x" in text
    assert "out 1.0" in text
    assert "reward 1" in text
    assert "True" not in text and "act 1" not in text


def test_render_is_refused_before_reset(stream_path: str) -> None:
    with pytest.raises(UsageError, match="before reset"):
        ReplayEnv(stream_path, render_mode="ansi").render()


def test_arguments_without_meaning_are_refused(stream_path: str) -> None:
    with pytest.raises(ConfigurationError, match="order must be one of file, shuffled, got 'random'"):
        ReplayEnv(stream_path, order="random")
    with pytest.raises(ConfigurationError, match="pass str"):
        ReplayEnv(Path(stream_path))
    with pytest.raises(ConfigurationError, match="render_mode"):
        ReplayEnv(stream_path, render_mode="human")
    with pytest.raises(StreamError, match="No such file"):
        ReplayEnv(stream_path + "x")


def test_importing_again_registers_nothing_twice(stream_path: str) -> None:
    spec = gymnasium.registry["ceb/Replay-v0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(ceb_envs)
        gymnasium.register_envs(ceb_envs)
    assert gymnasium.registry["ceb/Replay-v0"] is spec
    assert gymnasium.make("ceb/Replay-v0", stream=stream_path).spec.id == "ceb/Replay-v0"


def test_million_character_observation_plays_back(tmp_path: Path) -> None:
    huge = "中" * 1_000_000
    steps = (RecordedStep("", "cat", huge, 0.0), RecordedStep(huge, "ls", "", 1.0))
    write_stream(tmp_path / "f", StreamHeader("e"), [RecordedEpisode("1", "q", steps)])
    env = make(str(tmp_path / "f"))
    env.reset()
    observation, _, _, _, info = env.step("cat")
    assert observation == huge == info["outcome"]
    assert observation in env.observation_space


def test_recorded_action_with_unstorable_characters_still_matches(tmp_path: Path) -> None:
    run = RecordedEpisode("1", "q", (RecordedStep("", "a\0b\ud800", "o", 0.0),))
    write_stream(tmp_path / "f", StreamHeader("e"), [run])
    env = make(str(tmp_path / "f"))
    env.reset()
    assert env.step("a\0b\ud800")[4]["action_matches"] is True
