"""Precedents without looking at the text: random or newest records, to see what similarity is worth."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ceb_gym.protocols import Bank, View
from ceb_gym.types import Pin, Precedent, Precedents, Query, Record

UNRELATED = 0.0
"""The similarity of every precedent here: none was measured."""


class _Records:
    """The records of the pinned scopes by class, oldest first."""

    def __init__(self, bank: Bank, pins: tuple[Pin, ...]) -> None:
        self.revision = pins[0].revision if pins else 0
        records = [record for pin in pins for record in _of_pin(bank, pin)]
        if len(pins) > 1:
            records.sort(key=lambda record: record.created_at)
        self.productive = [record for record in records if record.label]
        self.unproductive = [record for record in records if not record.label]


def _of_pin(bank: Bank, pin: Pin) -> list[Record]:
    return bank.records(pin.scope, until=pin.revision) if pin.revision else []


def _as_precedents(records: Sequence[Record]) -> tuple[Precedent, ...]:
    return tuple(Precedent(record, UNRELATED) for record in records)


class RandomView:
    """Random records of some scopes at some revisions."""

    def __init__(self, bank: Bank, pins: tuple[Pin, ...], seed: int) -> None:
        self._records = _Records(bank, pins)
        self._seed = seed

    def find(self, queries: Sequence[Query], k: int) -> list[Precedents]:
        """Returns for each query k random records of each class; the same query always gets the same."""
        return [self._draw(query, k) for query in queries]

    def _draw(self, query: Query, k: int) -> Precedents:
        rng = random.Random(
            f"{self._seed}/{query.episode_id}/{query.step_index}/{query.state}/{query.action}"
        )
        productive, unproductive = (
            _as_precedents(rng.sample(records, min(k, len(records))))
            for records in (self._records.productive, self._records.unproductive)
        )
        return Precedents(productive, unproductive, self._records.revision)


class RecentView:
    """The newest records of some scopes at some revisions."""

    def __init__(self, bank: Bank, pins: tuple[Pin, ...]) -> None:
        self._records = _Records(bank, pins)

    def find(self, queries: Sequence[Query], k: int) -> list[Precedents]:
        """Returns for each query the k newest records of each class, newest first."""
        productive, unproductive = (
            _as_precedents(records[::-1][:k])
            for records in (self._records.productive, self._records.unproductive)
        )
        return [Precedents(productive, unproductive, self._records.revision)] * len(queries)


class RandomRetriever:
    """Gives k random records of each class.

    Args:
        bank: Where the records are.
        seed: Same seed and query, same records.
    """

    def __init__(self, bank: Bank, seed: int = 0) -> None:
        self._bank = bank
        self._seed = seed

    def view(self, pins: tuple[Pin, ...]) -> View:
        """Returns what the given scopes held at the given revisions; the first pin is the own scope."""
        return RandomView(self._bank, pins, self._seed)

    def save(self) -> None:
        """Nothing to save."""


class RecentRetriever:
    """Gives the k newest records of each class.

    Args:
        bank: Where the records are.
    """

    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    def view(self, pins: tuple[Pin, ...]) -> View:
        """Returns what the given scopes held at the given revisions; the first pin is the own scope."""
        return RecentView(self._bank, pins)

    def save(self) -> None:
        """Nothing to save."""
