"""A replay goes by the id of the environment that its stream was recorded from."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from ceb_envs.replay import ReplayEnv
from ceb_gym import ConfidenceWrapper
from ceb_gym.bank.store import SqlBank
from ceb_gym.cli.main import main
from ceb_gym.errors import ConfigurationError
from ceb_gym.streams import RecordedEpisode, RecordedStep, StreamHeader, write_stream

ODD_IDS = ["{env_id}", "{", "}}", "{user}", "a,b", "a&scope=b?c#d%20", "a/b:c", "中 文", "x!r:>99"]


def recorded(folder: Path, env_id: str) -> str:
    steps = (RecordedStep("$", "ls", "a", 0.0), RecordedStep("a", "cat a", "x", 1.0))
    path = folder / "runs.jsonl"
    write_stream(
        path, StreamHeader(env_id, "reward_level?first_baseline=0"), [RecordedEpisode("e", "look", steps)]
    )
    return str(path)


def replay(stream: str, **arguments: Any) -> ConfidenceWrapper[Any, Any]:
    env = gymnasium.make("ceb_envs:ceb/Replay-v0", stream=stream)
    return ConfidenceWrapper(env, "base_rate", **{"labeler": "reward_level", **arguments})


def play(env: ConfidenceWrapper[Any, Any]) -> None:
    env.reset()
    env.step("ls")
    env.step("cat a")
    env.close()


@pytest.mark.parametrize("env_id", ODD_IDS)
def test_default_scope_is_the_recorded_id_character_for_character(tmp_path: Path, env_id: str) -> None:
    path = tmp_path / "bank.db"
    env = replay(recorded(tmp_path, env_id), bank=str(path))
    play(env)
    assert env.pins[0].scope == env_id and len(env.pins) == 1
    with closing(SqlBank(f"sqlite:///{path}", read_only=True)) as bank:
        assert len(bank.records(env_id)) == 2


@pytest.mark.parametrize("env_id", ODD_IDS)
def test_a_scope_template_takes_the_recorded_id_as_it_is(tmp_path: Path, env_id: str) -> None:
    bank = "memory:?scope=runs/{env_id}/{user}&read_scopes=one,two"
    env = replay(recorded(tmp_path, env_id), bank=bank, scope_fields={"user": "ann"})
    env.reset()
    assert [pin.scope for pin in env.pins] == [f"runs/{env_id}/ann", "one", "two"]
    assert env.assess("ls").query.env_id == env_id
    env.close()


@pytest.mark.parametrize("env_id", ODD_IDS)
def test_ceb_run_and_a_replay_of_ones_own_share_the_scope(
    tmp_path: Path, env_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stream, path = recorded(tmp_path, env_id), tmp_path / "bank.db"
    command = ["run", "--stream", stream, "--critic", "base_rate", "--resamples", "0", "--bank", str(path)]
    assert main(command) == 0, capsys.readouterr().err
    env = replay(stream, bank=str(path))
    env.reset()
    assert (env.pins[0].scope, env.pins[0].revision) == (env_id, 1)
    env.close()


def test_a_spec_round_trip_keeps_the_recorded_id(tmp_path: Path) -> None:
    env = replay(recorded(tmp_path, "a {b}, c"))
    assert env.spec.id == "ceb/Replay-v0"
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        again = gymnasium.make(spec)
        again.reset()
        assert again.get_wrapper_attr("pins")[0].scope == "a {b}, c"
        again.close()
    env.close()


def test_two_replays_do_not_share_their_ids(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one = ReplayEnv(recorded(tmp_path, "one"))
    two = ReplayEnv(recorded(tmp_path / "other", "two"))
    assert (one.metadata["env_id"], two.metadata["env_id"]) == ("one", "two")
    assert "env_id" not in ReplayEnv.metadata


def test_an_id_too_long_for_a_scope_is_refused_with_the_way_out(tmp_path: Path) -> None:
    stream = recorded(tmp_path, "x" * 5_000)
    with pytest.raises(ConfigurationError, match=r"5000 characters.*\?scope=NAME"):
        replay(stream)
    env = replay(stream, bank="memory:?scope=short")
    play(env)
    assert env.pins[0].scope == "short"


class Served(gymnasium.Env[int, int]):
    """An environment of somebody else."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **metadata: Any) -> None:
        self.metadata = {"render_modes": [], **metadata}

    def reset(self, **arguments: Any) -> tuple[int, dict[str, Any]]:
        return 0, {}


@pytest.mark.parametrize(
    ("metadata", "env_id"),
    [({"env_id": "browsergym/shop"}, "browsergym/shop"), ({}, "Served"), ({"env_id": ""}, "Served")],
)
def test_any_environment_can_state_its_id(metadata: dict[str, Any], env_id: str) -> None:
    env = ConfidenceWrapper(gymnasium.wrappers.TimeLimit(Served(**metadata), 5), "rules", learn="off")
    env.reset()
    query = env.assess(1).query
    assert (query.env_id, query.scope) == (env_id, env_id)
    env.close()
