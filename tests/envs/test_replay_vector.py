import gymnasium
import pytest
from gymnasium.vector import AutoresetMode

ENV_ID = "ceb_envs:ceb/Replay-v0"


def make(kind: str, stream: str, **vector: object) -> gymnasium.vector.VectorEnv:
    if kind == "async":
        vector["shared_memory"] = False
    return gymnasium.make_vec(
        ENV_ID, num_envs=2, vectorization_mode=kind, vector_kwargs=vector, stream=stream, order="shuffled"
    )


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_each_lane_plays_what_a_single_environment_plays(stream_path: str, kind: str) -> None:
    envs = make(kind, stream_path, autoreset_mode=AutoresetMode.NEXT_STEP)
    singles = [gymnasium.make(ENV_ID, stream=stream_path, order="shuffled") for _ in range(2)]
    observations, infos = envs.reset(seed=[7, 8])
    expected = [env.reset(seed=seed) for env, seed in zip(singles, (7, 8), strict=True)]
    assert list(observations) == [observation for observation, _ in expected]
    ended = [False, False]
    for _ in range(12):
        observations, rewards, terminations, _, infos = envs.step(("act", "è\n"))
        for lane, env in enumerate(singles):
            if ended[lane]:
                observation, info = env.reset()
                reward, ended[lane] = 0.0, False
            else:
                observation, reward, ended[lane], _, info = env.step("act")
            assert (observations[lane], rewards[lane]) == (observation, reward)
            assert terminations[lane] == ended[lane]
            assert {key: infos[key][lane] for key in info} == info
    envs.close()


def test_shared_memory_is_refused_with_the_way_out(stream_path: str) -> None:
    with pytest.raises(ValueError, match="shared_memory=False"):
        gymnasium.make_vec(ENV_ID, num_envs=2, vectorization_mode="async", stream=stream_path)
