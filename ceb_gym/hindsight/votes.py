"""Hindsight votes: a language model that sees the whole episode labels each of its steps several times."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ceb_gym.chat.reading import first_json_object, read_label
from ceb_gym.chat.values import Chat, ChatChoice, ChatReply, ChatRequest
from ceb_gym.errors import ConfigurationError, LabelerError
from ceb_gym.hindsight.rules import labellable_steps
from ceb_gym.hindsight.vote_prompts import LABELS_SCHEMA, vote_messages
from ceb_gym.text import number_text, shorten
from ceb_gym.types import Step, StepLabel, Trajectory, Vote

_SHOWN_CHARS = 2_000
_TOKENS_A_STEP = 24
_TOKENS_BESIDE = 64
_SEEDS = 2**30


class VoteLabeler:
    """Labels each executed step by the majority of a language model's votes.

    All steps of an episode (or of a window of it) are labelled in one reply; `votes` replies are sampled by
    one request where the endpoint takes that. What cannot be read of a reply does not count. Steps with fewer
    valid votes than half of `votes`, rounded up, are asked for again, and close as unlabelled after the last
    attempt.

    Args:
        chat: The language model; it need not be the critic's.
        votes: Samples per step (V).
        temperature: Of the samples.
        seed: Of the first sample; further ones follow from it, the episode and the attempt.
        window_steps: Most steps labelled by one reply; the others are outlined in the prompt.
        attempts: Requests per window at most.
        max_tokens: Of a reply; None for what the labels need. Models that reason first need more.

    Source: arXiv 2607.12397: y~ = mean of the votes, y^ = 1 when y~ >= 1/2; V = 5, temperature 0.7.
    """

    needs_ending = True
    past_episodes = 0

    def __init__(
        self,
        chat: Chat,
        votes: int = 5,
        temperature: float = 0.7,
        seed: int = 0,
        window_steps: int = 20,
        attempts: int = 3,
        max_tokens: int | None = None,
    ) -> None:
        if isinstance(chat, type) or not isinstance(chat, Chat):
            raise ConfigurationError(f"The labeler got {chat!r}, which is no Chat: pass an OpenAIChat.")
        for name, value in (("votes", votes), ("window_steps", window_steps), ("attempts", attempts)):
            _check_whole(name, value, 1)
        _check_whole("seed", seed, 0)
        if max_tokens is not None:
            _check_whole("max_tokens", max_tokens, 1)
        usable = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        if not usable or not 0 <= temperature <= 2:
            raise ConfigurationError(f"temperature is {temperature!r}: give a number from 0 to 2.")
        self._chat = chat
        self._votes, self._temperature, self._seed = votes, float(temperature), seed
        self._window_steps, self._attempts, self._max_tokens = window_steps, attempts, max_tokens
        self.name = f"openai:{chat.model}?votes={votes}&temperature={number_text(temperature)}&seed={seed}"

    def label(self, trajectory: Trajectory, past_rewards: Sequence[Sequence[float]] = ()) -> list[StepLabel]:
        """Returns a label for each executed step.

        Raises:
            LabelerError: If the endpoint fails: the trajectory keeps waiting for labels.
        """
        steps = labellable_steps(trajectory)
        labels = []
        for start in range(0, len(steps), self._window_steps):
            window = steps[start : start + self._window_steps]
            votes = self._window_votes(trajectory, window)
            labels += [self._decided(step.index, votes[step.index]) for step in window]
        return labels

    def _window_votes(self, trajectory: Trajectory, window: Sequence[Step]) -> dict[int, list[Vote]]:
        votes: dict[int, list[Vote]] = {step.index: [] for step in window}
        for attempt in range(self._attempts):
            lacking = [step for step in window if not self._enough(votes[step.index])]
            if not lacking:
                break
            reply = self._reply(trajectory, window, attempt)
            read = [_read_votes(choice, self._chat.model, lacking) for choice in reply.choices]
            for step in lacking:
                votes[step.index] += [vote[step.index] for vote in read]
        return votes

    def _reply(self, trajectory: Trajectory, window: Sequence[Step], attempt: int) -> ChatReply:
        place = zlib.crc32(f"{trajectory.episode_id} {window[0].index}".encode("utf-8", "replace"))
        request = ChatRequest(
            vote_messages(trajectory, window),
            temperature=self._temperature,
            n=self._votes,
            max_tokens=self._max_tokens or _TOKENS_BESIDE + _TOKENS_A_STEP * len(window),
            seed=(self._seed + place) % _SEEDS + attempt * self._votes,
            json_schema=LABELS_SCHEMA,
        )
        (reply,) = self._chat.complete([request])
        if not isinstance(reply, ChatReply):
            raise LabelerError(
                f"Labeler {self.name} got no reply for episode {trajectory.episode_id}: {reply}"
            ) from reply
        return reply

    def _enough(self, votes: Sequence[Vote]) -> bool:
        return 2 * sum(vote.label is not None for vote in votes) >= self._votes

    def _decided(self, index: int, votes: Sequence[Vote]) -> StepLabel:
        valid = [vote.label for vote in votes if vote.label is not None]
        if not self._enough(votes):
            return StepLabel(index, None, None, tuple(votes))
        share = sum(valid) / len(valid)
        return StepLabel(index, share >= 0.5, share, tuple(votes))


def _read_votes(choice: ChatChoice, model: str, steps: Sequence[Step]) -> dict[int, Vote]:
    """The vote of one reply for each step; without a label where it says nothing plain of it."""
    found = first_json_object(choice.text, "labels")
    items = _items(found["labels"]) if found is not None else []
    votes = {}
    for step in steps:
        own = [item for item in items if _number(item.get("step")) == step.index]
        said = {read_label(item.get("productive")) for item in own}
        label = said.pop() if len(said) == 1 else None
        text = json.dumps(own, ensure_ascii=False) if own else choice.text
        votes[step.index] = Vote(label, choice.seed, model, shorten(text, _SHOWN_CHARS))
    return votes


def _items(labels: Any) -> list[Mapping[str, Any]]:
    """The entries of a list, or of an object of labels by step number, as some models write it."""
    if isinstance(labels, dict):
        return [{"step": step, "productive": label} for step, label in labels.items()]
    return [item for item in labels if isinstance(item, dict)] if isinstance(labels, list) else []


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} is {value!r}: give a whole number from {least}.")
