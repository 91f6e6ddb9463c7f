"""The index states of one combination of scopes: from the bank, from a file, from one another."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from ceb_gym.errors import BankError, RevisionGoneError
from ceb_gym.protocols import Bank
from ceb_gym.retrieval.analyzer import Vocabulary
from ceb_gym.retrieval.index import IndexState, UnknownRecordError
from ceb_gym.retrieval.segment import Segment, build_segment, pack_ids
from ceb_gym.retrieval.snapshot import Origin, Snapshot, read_snapshot, same_scopes, write_snapshot
from ceb_gym.text import retrieval_key
from ceb_gym.types import Record

RECORDS_AT_ONCE = 2048
"""Records counted together: few enough for the processor's cache, which makes it fastest."""
KEPT_STATES = 128
"""How many states are kept, for lanes that are pinned to earlier revisions. They share their segments."""
KEPT_WEIGHTS = 16
"""How many of the states used last keep what is computed at the first query, which is most of their size."""
WORTH_SAVING = 0.02
"""A share of records changed since the last snapshot, from which on a new one is worth writing."""

_log = logging.getLogger(__name__)

Revisions = tuple[int, ...]
Scoped = tuple[int, Record]
"""A record with the number of its scope."""


class Lineage:
    """Gives the state of the index at any revisions of its scopes, from the nearest it has.

    Args:
        bank: Where the records are.
        scopes: Different scopes, the own one first.
        path: Where the newest state may be kept between runs.
    """

    def __init__(self, bank: Bank, scopes: tuple[str, ...], path: Path | None) -> None:
        self.vocabulary = Vocabulary()
        self._bank = bank
        self._scopes = scopes
        self._path = path
        self._lock = threading.Lock()
        self._started = False
        self._states: OrderedDict[Revisions, IndexState] = OrderedDict()
        self._newest: Revisions | None = None
        self._saved: tuple[Revisions, int] | None = None

    def renew_lock(self) -> None:
        """Forgets who holds the lock, for use after a fork."""
        self._lock = threading.Lock()

    def at(self, revisions: Revisions) -> IndexState:
        """The state at these revisions, in the order of the scopes.

        Raises:
            RevisionGoneError: If the bank no longer holds all of a revision, and no state is kept.
        """
        with self._lock:
            if not self._started:
                self._start_from_snapshot()
            state = self._states.get(revisions)
            if state is None:
                state = self._made(revisions)
                self._keep(revisions, state)
            self._states.move_to_end(revisions)
            for unused in islice(reversed(self._states.values()), KEPT_WEIGHTS, KEPT_WEIGHTS + 1):
                unused.forget_weights()
            return state

    def save(self) -> None:
        """Writes the newest state, where enough of it is new."""
        with self._lock:
            if self._path is None or self._newest is None:
                return
            state = self._states[self._newest]
            if self._saved is not None:
                revisions, churn = self._saved
                changed = state.churn - churn
                if revisions == self._newest or changed < WORTH_SAVING * state.num_live:
                    return
            try:
                origin = self._origin(self._newest)
            except BankError as error:
                _log.warning("The index was not saved, as the bank gave no digest: %s", error)
                return
            if write_snapshot(self._path, Snapshot(origin, self.vocabulary, state)):
                self._saved = (self._newest, state.churn)

    def _origin(self, revisions: Revisions) -> Origin:
        pairs = zip(self._scopes, revisions, strict=True)
        digests = tuple(self._bank.digest(scope, revision) for scope, revision in pairs)
        return Origin(self._bank.bank_id, self._scopes, revisions, digests)

    def _start_from_snapshot(self) -> None:
        """Takes over a saved state, if it is of this bank's own history and the bank can lead on from it."""
        self._started = True
        snapshot = None if self._path is None else read_snapshot(self._path)
        if snapshot is None or not same_scopes(snapshot.origin, self._bank.bank_id, self._scopes):
            return
        revisions = snapshot.origin.revisions
        try:
            if self._origin(revisions) != snapshot.origin:
                return
            for scope, revision in zip(self._scopes, revisions, strict=True):
                self._bank.changes(scope, revision, revision)
        except (BankError, ValueError):
            return
        self.vocabulary = snapshot.vocabulary
        self._keep(revisions, snapshot.state)
        self._saved = (revisions, snapshot.state.churn)

    def _keep(self, revisions: Revisions, state: IndexState) -> None:
        self._states[revisions] = state
        if self._newest is None or _at_or_before(self._newest, revisions):
            self._newest = revisions
        spare = len(self._states) - KEPT_STATES
        for old in list(self._states) if spare > 0 else ():
            if spare > 0 and old not in (revisions, self._newest):
                del self._states[old]
                spare -= 1

    def _made(self, revisions: Revisions) -> IndexState:
        bases = [kept for kept in self._states if _at_or_before(kept, revisions)]
        if bases:
            base = max(bases, key=sum)
            try:
                return self._advanced(self._states[base], base, revisions)
            except (RevisionGoneError, UnknownRecordError) as error:
                _log.info("The index of %s is rebuilt: %s", self._scopes, error)
        return self._rebuilt(revisions)

    def _advanced(self, state: IndexState, since: Revisions, until: Revisions) -> IndexState:
        added: list[Scoped] = []
        removed: list[str] = []
        for number, scope in enumerate(self._scopes):
            if since[number] < until[number]:
                changes = self._bank.changes(scope, since[number], until[number])
                added += [(number, record) for record in changes.added]
                removed += changes.removed
        state = state.without_records(removed)
        for segment in self._segments(added):
            state = state.with_segment(segment)
        return state

    def _rebuilt(self, revisions: Revisions) -> IndexState:
        records: list[Scoped] = []
        for number, (scope, revision) in enumerate(zip(self._scopes, revisions, strict=True)):
            if revision:
                records += [(number, record) for record in self._bank.records(scope, until=revision)]
        return IndexState.of_segments(list(self._segments(records)))

    def _segments(self, records: Sequence[Scoped]) -> Iterator[Segment]:
        for start in range(0, len(records), RECORDS_AT_ONCE):
            yield count_terms(records[start : start + RECORDS_AT_ONCE], self.vocabulary)


def count_terms(records: Sequence[Scoped], vocabulary: Vocabulary) -> Segment:
    """Makes a segment of records (in commit order within each scope) and adds their words."""
    ordered = sorted(records, key=lambda scoped: not scoped[1].label)
    keys = [retrieval_key(record.task, record.state, record.action) for _, record in ordered]
    encoded = vocabulary.add(keys)
    return build_segment(
        encoded,
        len(vocabulary),
        sum(record.label for _, record in records),
        np.array([number for number, _ in ordered], dtype=np.int16),
        np.array([record.created_at for _, record in ordered], dtype=np.float64),
        pack_ids([record.record_id for _, record in ordered]),
    )


def _at_or_before(earlier: Revisions, later: Revisions) -> bool:
    return all(mine <= other for mine, other in zip(earlier, later, strict=True))
