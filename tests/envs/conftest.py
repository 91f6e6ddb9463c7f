from pathlib import Path

import pytest

from ceb_gym.streams import RecordedEpisode, RecordedStep, StreamHeader, write_stream

HEADER = StreamHeader("recorded-env", "reward_level?first_baseline=0")


def make_episode(number: int, n_steps: int) -> RecordedEpisode:
    steps = tuple(
        RecordedStep(
            state="" if index == 0 else f"out {number}.{index - 1}",
            action=f"act {number}.{index}",
            outcome=f"out {number}.{index}",
            reward=number + index / 10,
            label=index % 2 == 0,
            logprobs=(-float(index), -0.5) if number == 0 else None,
        )
        for index in range(n_steps)
    )
    return RecordedEpisode(f"run/{number}", f"task {number}", steps, 0.39, success=number % 2 == 1)


@pytest.fixture
def stream_path(tmp_path: Path) -> str:
    path = tmp_path / "stream.jsonl"
    write_stream(path, HEADER, [make_episode(number, n_steps=number % 3 + 1) for number in range(6)])
    return str(path)
