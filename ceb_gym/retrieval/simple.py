"""Precedents without looking at the text: random or newest records, to see what similarity is worth."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Bank, View
from ceb_gym.types import Pin, Precedent, Precedents, Query, Record

UNRELATED = 0.0
"""The similarity of every precedent here: none was measured."""
KEPT_PINS = 8
"""Records are kept in memory for this many pins, as a view is asked for at each step."""

Classes = tuple[list[Record], list[Record]]
"""Productive and unproductive records, oldest first."""


class _Records:
    """The records at pins, read from the bank once for each of the last few pins."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._kept: OrderedDict[tuple[Pin, ...], Classes] = OrderedDict()

    def at(self, pins: tuple[Pin, ...]) -> Classes:
        """The records of all pinned scopes; those of different scopes are in the order of their times."""
        if not pins:
            raise ConfigurationError("A view needs at least one pin, of the own scope.")
        kept = self._kept.get(pins)
        if kept is None:
            records = [
                record
                for scope, revision in dict.fromkeys(pins)
                if revision
                for record in self._bank.records(scope, until=revision)
            ]
            if len(pins) > 1:
                records.sort(key=lambda record: record.created_at)
            kept = ([one for one in records if one.label], [one for one in records if not one.label])
            self._kept[pins] = kept
            for old in list(self._kept)[:-KEPT_PINS]:
                self._kept.pop(old, None)
        return kept


def _as_precedents(records: Sequence[Record]) -> tuple[Precedent, ...]:
    return tuple(Precedent(record, UNRELATED) for record in records)


def _checked(k: int) -> int:
    if k < 0:
        raise ConfigurationError(f"k is {k}; the number of precedents per class is 0 or more.")
    return k


class RandomView:
    """Random ones of some records."""

    def __init__(self, classes: Classes, revision: int, seed: int) -> None:
        self._classes = classes
        self._revision = revision
        self._seed = seed

    def find(self, queries: Sequence[Query], k: int) -> list[Precedents]:
        """Returns for each query k random records of each class; the same query always gets the same."""
        return [self._draw(query, _checked(k)) for query in queries]

    def _draw(self, query: Query, k: int) -> Precedents:
        identity = (self._seed, query.episode_id, query.step_index, query.task, query.state, query.action)
        rng = random.Random(repr(identity))
        productive, unproductive = (
            _as_precedents(rng.sample(records, min(k, len(records)))) for records in self._classes
        )
        return Precedents(productive, unproductive, self._revision)


class RecentView:
    """The newest of some records."""

    def __init__(self, classes: Classes, revision: int) -> None:
        self._classes = classes
        self._revision = revision

    def find(self, queries: Sequence[Query], k: int) -> list[Precedents]:
        """Returns for each query the k newest records of each class, newest first."""
        productive, unproductive = (
            _as_precedents(records[: -_checked(k) - 1 : -1]) for records in self._classes
        )
        return [Precedents(productive, unproductive, self._revision)] * len(queries)


class RandomRetriever:
    """Gives k random records of each class.

    Args:
        bank: Where the records are.
        seed: Same seed and query, same records.
    """

    def __init__(self, bank: Bank, seed: int = 0) -> None:
        self._records = _Records(bank)
        self._seed = seed

    def view(self, pins: tuple[Pin, ...]) -> View:
        """Returns what the given scopes held at the given revisions; the first pin is the own scope."""
        return RandomView(self._records.at(pins), pins[0].revision, self._seed)

    def save(self) -> None:
        """Nothing to save."""


class RecentRetriever:
    """Gives the k newest records of each class.

    Args:
        bank: Where the records are.
    """

    def __init__(self, bank: Bank) -> None:
        self._records = _Records(bank)

    def view(self, pins: tuple[Pin, ...]) -> View:
        """Returns what the given scopes held at the given revisions; the first pin is the own scope."""
        return RecentView(self._records.at(pins), pins[0].revision)

    def save(self) -> None:
        """Nothing to save."""
