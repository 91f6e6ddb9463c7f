"""Votes of SmolLM2-135M on loopback: shapes, counts and seeds, never its judgement."""

from __future__ import annotations

from ceb_gym.build.parts import make_labeler
from ceb_gym.testing import make_step, make_trajectory


def test_a_real_model_votes_on_each_step(model_url: str) -> None:
    labeler = make_labeler(f"openai:smollm2?base_url={model_url}&concurrency=1&votes=3&attempts=2")
    assert labeler is not None
    steps = [
        make_step(0, state="$", action="ls", outcome="a.txt b.txt"),
        make_step(1, state="a.txt b.txt", action="rm a.txt", outcome=""),
    ]
    labels = labeler.label(make_trajectory("live", steps, task="Count the files."))
    assert [label.index for label in labels] == [0, 1]
    for label in labels:
        assert len(label.votes) in (3, 6) and all(vote.model == "smollm2" for vote in label.votes)
        assert all(vote.seed is not None and vote.text for vote in label.votes)
        valid = [vote.label for vote in label.votes if vote.label is not None]
        assert (label.label is None) == (2 * len(valid) < 3)
        assert label.vote_share is None or 0 <= label.vote_share <= 1
