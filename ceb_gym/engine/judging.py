"""One judgement: precedents, the critic's verdict, and what happens when the critic fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

from ceb_gym.critics.checks import checked_verdicts
from ceb_gym.engine.models import ModelStore
from ceb_gym.errors import CriticError
from ceb_gym.protocols import Bank, Critic, LearningCritic, Retriever
from ceb_gym.types import Pin, Precedents, Query, Verdict

OnCriticError = Literal["raise", "unscored"] | Critic
Judgement = tuple[Verdict, Precedents]


class Judge:
    """Judges queries, each at its own pins.

    Args:
        bank: Where learning critics learn from.
        retriever: Where precedents come from.
        critic: Judges.
        on_error: "raise" passes a critic's failure on, "unscored" gives verdicts without a confidence,
            another critic judges in its place.
    """

    def __init__(self, bank: Bank, retriever: Retriever, critic: Critic, on_error: OnCriticError) -> None:
        self._retriever = retriever
        self._critic = critic
        self._on_error = on_error
        self._lock = threading.RLock()
        critics = [critic] if isinstance(on_error, str) else [critic, on_error]
        self._models = {
            id(each): ModelStore(bank, each) for each in critics if isinstance(each, LearningCritic)
        }

    @property
    def critic(self) -> Critic:
        """The critic that judges."""
        return self._critic

    def judge(self, queries: Sequence[Query], pins: Sequence[tuple[Pin, ...]]) -> list[Judgement]:
        """Returns verdict and precedents for each query. Raises CriticError as `on_error` says."""
        try:
            return self._judge_by(self._critic, queries, pins)
        except CriticError as error:
            if isinstance(self._on_error, str):
                if self._on_error == "raise":
                    raise
                unscored = Verdict(None, f"unscored: {error}", self._critic.name)
                return [(unscored, Precedents(revision=query.revision)) for query in queries]
            return self._judge_by(self._on_error, queries, pins)

    def _judge_by(
        self, critic: Critic, queries: Sequence[Query], pins: Sequence[tuple[Pin, ...]]
    ) -> list[Judgement]:
        precedents = self._precedents(critic.k, queries, pins)
        models = self._models.get(id(critic))
        if models is None:
            return list(zip(self._ask(critic, queries, precedents), precedents, strict=True))
        judgements: dict[int, Judgement] = {}
        for pin_set in dict.fromkeys(pins):
            with self._lock:
                fitted = models.at(pin_set)
            places = [place for place, own in enumerate(pins) if own == pin_set]
            verdicts = self._ask(
                fitted, [queries[place] for place in places], [precedents[place] for place in places]
            )
            for place, verdict in zip(places, verdicts, strict=True):
                judgements[place] = (verdict, precedents[place])
        return [judgements[place] for place in range(len(queries))]

    def _precedents(
        self, k: int, queries: Sequence[Query], pins: Sequence[tuple[Pin, ...]]
    ) -> list[Precedents]:
        if k == 0:
            return [Precedents(revision=query.revision) for query in queries]
        found: dict[int, Precedents] = {}
        for pin_set in dict.fromkeys(pins):
            places = [place for place, own in enumerate(pins) if own == pin_set]
            with self._lock:
                view = self._retriever.view(pin_set)
            for place, precedents in zip(
                places, view.find([queries[place] for place in places], k), strict=True
            ):
                found[place] = precedents
        return [found[place] for place in range(len(queries))]

    @staticmethod
    def _ask(critic: Critic, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        try:
            verdicts = critic.judge(tuple(queries), tuple(precedents))
        except CriticError:
            raise
        except Exception as error:  # a critic is foreign code: its failure is handled as the user chose
            raise CriticError(f"Critic {critic.name} raised {type(error).__name__}: {error}") from error
        return checked_verdicts(critic, verdicts, len(queries))
