import importlib

import gymnasium
import pytest

from ceb_envs.replay.summarizer import ReplaySummarizer
from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Summarizer


def test_metadata_names_a_summarizer_that_fits_the_protocol(stream_path: str) -> None:
    env = gymnasium.make("ceb_envs:ceb/Replay-v0", stream=stream_path)
    module, name = env.metadata["summarizer"].split(":")
    assert isinstance(getattr(importlib.import_module(module), name)(), Summarizer)


def test_recorded_texts_are_taken_as_they_are(stream_path: str) -> None:
    env = gymnasium.make("ceb_envs:ceb/Replay-v0", stream=stream_path)
    summarizer = ReplaySummarizer()
    observation, info = env.reset(options={"episode": 1})
    assert summarizer.task(observation, info, {}) == "task 1"
    assert summarizer.state(observation, info, "act") == ""
    observation, _, _, _, info = env.step("act")
    assert summarizer.outcome(observation, info) == "out 1.0"
    assert summarizer.state(observation, info, "act") == "out 1.0"
    assert summarizer.action("ls \0") == "ls \ufffd"


def test_long_texts_keep_head_and_tail() -> None:
    long = "h" * 5_000 + "t" * 5_000
    summarizer = ReplaySummarizer()
    for text, kept in (
        (summarizer.state(long, {}, ""), 2_000),
        (summarizer.outcome("", {"outcome": long}), 1_000),
        (summarizer.action(long), 1_000),
    ):
        assert text.count("h") - 2 + text.count("t") - 2 <= kept
        assert text.startswith("h") and text.endswith("t")
        assert f"[... {10_000 - kept} characters cut ...]" in text


def test_lengths_can_be_chosen() -> None:
    summarizer = ReplaySummarizer(state_chars=10, outcome_chars=20, action_chars=30)
    assert "90 characters cut" in summarizer.state("x" * 100, {}, "")
    assert "80 characters cut" in summarizer.outcome("", {"outcome": "x" * 100})
    assert "70 characters cut" in summarizer.action("x" * 100)
    with pytest.raises(ConfigurationError, match="action_chars must be at least 2, got 0"):
        ReplaySummarizer(action_chars=0)
