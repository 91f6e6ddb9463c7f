"""`TfidfRetriever`: precedents by exact TF-IDF similarity, at any pinned revision."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Bank, View
from ceb_gym.retrieval.analyzer import Vocabulary
from ceb_gym.retrieval.index import IndexState
from ceb_gym.retrieval.lineage import Lineage
from ceb_gym.retrieval.search import Match, search
from ceb_gym.text import retrieval_key
from ceb_gym.types import Pin, Precedent, Precedents, Query, Record

CACHED_RECORDS = 2048
"""About how many of the records found last are kept in memory."""


class RecordCache:
    """Records by id, those found last kept in memory. A record never changes under its id.

    Two generations instead of an exact order of use: threads need no lock, which a fork could leave locked.
    """

    def __init__(self, bank: Bank, size: int = CACHED_RECORDS) -> None:
        self._bank = bank
        self._half = size // 2
        self._young: dict[str, Record] = {}
        self._old: dict[str, Record] = {}

    def get(self, record_ids: Sequence[str]) -> dict[str, Record]:
        """The records with these ids; those that the bank no longer holds are left out."""
        young, old = self._young, self._old
        found: dict[str, Record] = {}
        for record_id in record_ids:
            record = young.get(record_id) or old.get(record_id)
            if record is not None:
                found[record_id] = young[record_id] = record
        missing = [record_id for record_id in dict.fromkeys(record_ids) if record_id not in found]
        if missing:
            fetched = self._bank.records_by_id(missing)
            found |= fetched
            young |= fetched
        if len(young) > self._half:
            self._old, self._young = young, {}
        return found


class TfidfView:
    """What some scopes held at some revisions; never changes. Safe to share between threads."""

    def __init__(
        self, state: IndexState, vocabulary: Vocabulary, revision: int, records: RecordCache
    ) -> None:
        self._state = state
        self._vocabulary = vocabulary
        self._revision = revision
        self._records = records

    def find(self, queries: Sequence[Query], k: int) -> list[Precedents]:
        """Returns for each query the k most similar records of each class, best first.

        Similarity is the cosine of TF-IDF vectors over words and word pairs, equal to that of scikit-learn's
        `TfidfVectorizer(ngram_range=(1, 2))` fitted to the living keys of the pinned revisions. Of equally
        similar records (within 1e-10) the newest comes first. Records without a common term have
        similarity 0 and fill up what is missing to k. A record purged from the bank since is left out.

        Raises:
            ConfigurationError: If k is negative.
        """
        if k < 0:
            raise ConfigurationError(f"k is {k}; the number of precedents per class is 0 or more.")
        keys = [retrieval_key(query.task, query.state, query.action) for query in queries]
        distinct = list(dict.fromkeys(keys))
        found = search(self._state, self._vocabulary.look_up(distinct), k)
        ids = {
            match.hit: self._state.record_id(match.hit) for pair in found for side in pair for match in side
        }
        records = self._records.get(list(ids.values())) if ids else {}

        def precedents(matches: Sequence[Match]) -> tuple[Precedent, ...]:
            held = ((records.get(ids[match.hit]), match.similarity) for match in matches)
            return tuple(Precedent(record, similarity) for record, similarity in held if record is not None)

        answers = {
            key: Precedents(precedents(productive), precedents(unproductive), self._revision)
            for key, (productive, unproductive) in zip(distinct, found, strict=True)
        }
        return [answers[key] for key in keys]


class TfidfRetriever:
    """Finds the most similar records of each class, exactly, at any pinned revision.

    The index is built at the first view and follows the bank commit by commit. Threads may share it; a
    process that was forked goes on with a copy.

    Args:
        bank: Where the records are.
        snapshot_path: Where the index may be kept between runs: one file for each combination of scopes,
            with this name and an ending of its own. None keeps nothing.
    """

    def __init__(self, bank: Bank, *, snapshot_path: Path | None = None) -> None:
        self._bank = bank
        self._snapshot_path = snapshot_path
        self._records = RecordCache(bank)
        self._lineages: dict[tuple[str, ...], Lineage] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    def view(self, pins: tuple[Pin, ...]) -> View:
        """Returns what the given scopes held at the given revisions; the first pin is the own scope.

        Raises:
            ConfigurationError: If there is no pin, or one scope at two revisions.
            RevisionGoneError: If the bank no longer holds all of a revision, and the index neither.
        """
        revisions = dict(pins)
        if not pins or any(revisions[scope] != revision for scope, revision in pins):
            raise ConfigurationError(
                f"A view needs one revision of each scope, not {list(map(tuple, pins))}."
            )
        lineage = self._lineage(tuple(revisions))
        state = lineage.at(tuple(revisions.values()))
        return TfidfView(state, lineage.vocabulary, pins[0].revision, self._records)

    def save(self) -> None:
        """Writes the newest index of each combination of scopes, where enough has changed since the last."""
        for lineage in list(self._lineages.values()):
            lineage.save()

    def _lineage(self, scopes: tuple[str, ...]) -> Lineage:
        if self._process != os.getpid():  # a lock that a thread held during a fork stays locked in the child
            self._process = os.getpid()
            self._lock = threading.Lock()
            for lineage in self._lineages.values():
                lineage.renew_lock()
        with self._lock:
            if scopes not in self._lineages:
                self._lineages[scopes] = Lineage(self._bank, scopes, self._path_for(scopes))
            return self._lineages[scopes]

    def _path_for(self, scopes: tuple[str, ...]) -> Path | None:
        if self._snapshot_path is None:
            return None
        name = hashlib.blake2b(json.dumps(scopes).encode(), digest_size=8).hexdigest()
        return self._snapshot_path.with_name(f"{self._snapshot_path.name}.{name}.npz")
