"""Warm start: other runs are banked, each into a scope of its own, before the run that reads them."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gymnasium as gym

from ceb_gym.build.parts import make_bank, make_critic, make_labeler
from ceb_gym.engine.learning import label_stored
from ceb_gym.errors import ConfigurationError
from ceb_gym.evaluation.given import GIVEN, GivenLabels, reference_labels_of, source_episodes
from ceb_gym.features import query_features
from ceb_gym.protocols import Bank, Critic
from ceb_gym.streams import Stream, read_stream
from ceb_gym.types import Precedents, Query, Verdict
from ceb_gym.wrapper import ConfidenceWrapper

REPLAY: Final = "ceb_envs:ceb/Replay-v0"

_SOURCE_SETTING = "warm_source"
_DONE_SETTING = "warm_done"
_PLACE = re.compile(r"-(\d+)-\d+-(\d+)$")  # of an episode in a stream: where its pass began, how many since


class Unscored:
    """Stands in for the run's critic: the same precedents, all features of them, but no score.

    What it banks is unscored, so that nothing of these runs can be mistaken for a past score of the critic,
    and a critic that asks a language model costs nothing.

    Args:
        critic: Says how many precedents are looked up. With none, no features are stored: a critic that wants
            them computes them from the records' text.
    """

    name = "unscored"

    def __init__(self, critic: Critic) -> None:
        self.k = critic.k
        self._critic_name = critic.name

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns an unscored verdict for each query, with its features."""
        return [
            Verdict(
                None,
                source=self.name,
                features=query_features(query, found, self._critic_name) if self.k else {},
            )
            for query, found in zip(queries, precedents, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class WarmScope:
    """What a stream gave.

    Attributes:
        scope: Where its records are.
        n_banked: Episodes banked now; 0 where the scope held them already.
        n_waiting: Episodes still without labels: a process that was killed held them, and its claim has not
            run out yet. The next pass labels them.
    """

    scope: str
    n_banked: int
    n_waiting: int = 0


def warm_scope(path: Path) -> str:
    """The scope that a stream is banked into, by its file's name (a comma would split `read_scopes`)."""
    return f"warm/{path.stem.replace(',', '_')}"


def bank_stream(
    path: Path,
    *,
    bank: str,
    labeler: Any,
    critic: Any,
    retriever: Any = "tfidf",
    on_episode: Callable[[], None] = lambda: None,
) -> WarmScope:
    """Banks a recorded stream into `warm_scope(path)`, unscored, unless that scope holds it already.

    A pass that was cut short goes on where it stopped. Two processes must not bank the same stream at once:
    its records would be there twice, which is noticed at the end.

    Args:
        path: The stream.
        bank: URL of a bank that outlives this call, without scopes.
        labeler: As for the wrapper, or "given": the stream's own reference labels.
        critic: The critic of the run that will read the scope: precedents and features are made for it.
        retriever: As for the wrapper.
        on_episode: Called after each episode.

    Raises:
        ConfigurationError: If the scope holds another stream, or this one labelled otherwise.
        StreamError: If the stream breaks its format.
    """
    stream, scope = read_stream(path), warm_scope(path)
    place = make_bank(bank, read_only=False, clock=time.time)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if _is_banked(place, scope, path, digest, labeler):
            return WarmScope(scope, 0)
        done = len(place.past_rewards(scope, len(stream)))
        wrapper: ConfidenceWrapper[Any, Any] = ConfidenceWrapper(
            gym.make(REPLAY, stream=str(path)),
            critic=Unscored(make_critic(critic)),
            bank=place,
            scope_fields={"env_id": scope},
            labeler="none" if labeler == GIVEN else labeler,
            retriever=retriever,
            early_reset="drop",
            run_id=f"warm-{hashlib.sha256(f'{scope} {digest}'.encode()).hexdigest()[:16]}-{done}",
        )
        try:
            _label_waiting(wrapper, stream, scope, done, labeler)
            _play_rest(wrapper, stream, done, labeler, on_episode)
        finally:
            wrapper.close()
        if len(place.past_rewards(scope, len(stream) + 1)) > len(stream):
            raise ConfigurationError(
                f"The scope {scope} holds more episodes than {path}: two processes banked it at once. "
                "Start again with a new bank."
            )
        n_waiting = len(place.pending(scope))
        if not n_waiting:
            place.put_setting(scope, _DONE_SETTING, str(len(stream)))
    finally:
        place.close()
    return WarmScope(scope, len(stream) - done, n_waiting)


def _is_banked(bank: Bank, scope: str, path: Path, digest: str, labeler: Any) -> bool:
    """Whether the scope holds all of the stream. Raises ConfigurationError where it holds something else."""
    if bank.setting(scope, _SOURCE_SETTING) is None and bank.revision(scope) > 0:
        return True  # somebody filled a scope of this name by other means: what it holds is what they want
    name = GIVEN if labeler == GIVEN else getattr(make_labeler(labeler), "name", "none")
    wanted = f"sha256 {digest}, labeler {name}"
    held = bank.put_setting(scope, _SOURCE_SETTING, wanted)
    if held != wanted:
        raise ConfigurationError(
            f"The scope {scope} of the bank was made from another stream or by another labeler ({held}; "
            f"{path} now has {wanted}): rename the file, or use another bank."
        )
    return bank.setting(scope, _DONE_SETTING) is not None


def _play_rest(
    wrapper: ConfidenceWrapper[Any, Any],
    stream: Stream,
    done: int,
    labeler: Any,
    on_episode: Callable[[], None],
) -> None:
    """Plays the episodes that the scope lacks, labelled as they end."""
    given = GivenLabels(_sources_from(stream, done)) if labeler == GIVEN else None
    for position in range(done, len(stream)):
        _play(wrapper, stream, position)
        if given is not None:
            labels = reference_labels_of(wrapper)
            given.episode_ended(wrapper.bank, wrapper.episode_id, stream.episode_ids[position], labels)
        on_episode()


def _sources_from(stream: Stream, done: int) -> dict[str, str]:
    left = set(stream.episode_ids[done:])
    return {name: source for name, source in source_episodes(stream).items() if name in left}


def _play(env: gym.Env[Any, Any], stream: Stream, position: int) -> None:
    env.reset(options={"episode": position})
    for step in stream[position].steps:
        env.step(step.action)


def _label_waiting(
    wrapper: ConfidenceWrapper[Any, Any], stream: Stream, scope: str, done: int, labeler: Any
) -> None:
    """Labels what a pass that was cut short had stored but not labelled."""
    waiting = wrapper.bank.pending(scope)
    if labeler != GIVEN:
        own = make_labeler(labeler)
        for key in waiting:
            if own is not None:
                label_stored(wrapper.bank, own, key)
        return
    given = GivenLabels({})
    for episode_id in dict.fromkeys(key.episode_id for key in waiting):
        numbers = _PLACE.search(episode_id)
        position = int(numbers[1]) + int(numbers[2]) if numbers is not None else done
        if position < done:
            _play(wrapper.env, stream, position)  # without the wrapper: only its labels are wanted
            given.episode_ended(
                wrapper.bank, episode_id, stream.episode_ids[position], reference_labels_of(wrapper.env)
            )
