"""What an index holds at one revision: an immutable value that shares its segments with other revisions.

Adding or removing documents gives a new state; whoever holds the old one keeps an unchanged view. New
documents come as small segments, which are merged in the manner of a log-structured tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ceb_gym.retrieval.analyzer import Int32Array, IntArray
from ceb_gym.retrieval.segment import (
    Float32Array,
    FloatArray,
    Segment,
    hash_ids,
    merge_segments,
)

MERGE_RATIO = 8
"""A segment is at least this many times as large as all newer ones together, or they are merged."""
SMALL_SEGMENT = 512
"""Segments of together no more documents than this are merged whatever their ratio."""
MAX_DEAD_SHARE = 0.25
"""A segment with a larger share of dead documents is rewritten without them."""
MAX_DRIFT = 0.9
"""Norms of an earlier state are used as long as the least of their changes is this much of the largest."""
MAX_POSTINGS = 2**31 - 1
"""More than this many would not fit the 32-bit positions of a segment."""

NOTHING_DEAD: IntArray = np.empty(0, dtype=np.int64)


class UnknownRecordError(LookupError):
    """A record that is to be removed is not in the index: the index is out of step with its bank."""


class Hit(NamedTuple):
    """A document of a state, by part and position in it."""

    part: int
    document: int


@dataclass(frozen=True, slots=True, eq=False)
class Norms:
    """Lengths of a segment's documents at some state, in single precision: good enough to find candidates.

    Attributes:
        idf: Shape (t,), the inverse document frequencies they were computed with.
        inverse: Shape (n,), one over each document's length, 0 for documents without terms.
    """

    idf: FloatArray
    inverse: Float32Array


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A segment as one state sees it.

    Attributes:
        segment: The documents, shared between states.
        frequencies: Shape (t,), in how many living documents of all parts each of the segment's terms is.
        dead: The segment's removed documents, increasing.
        earlier: Norms of an earlier state, where there are any.
    """

    segment: Segment
    frequencies: Int32Array
    dead: IntArray
    earlier: Norms | None = None

    @property
    def num_live(self) -> int:
        """Documents that are not removed."""
        return len(self.segment) - len(self.dead)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Numbers of one part that change whenever a document comes or goes anywhere.

    Attributes:
        idf: Shape (t,), inverse document frequencies, smoothed as in scikit-learn.
        norms: Of this state, or of an earlier one that differs little.
        drift: Between which factors each living document's length is of what `norms` says.
    """

    idf: FloatArray
    norms: Norms
    drift: tuple[float, float]


class IndexState:
    """All documents of some scopes at some revisions.

    Attributes:
        parts: Oldest first; the documents of each scope and class in the order of their commits.
        num_live: Documents that are not removed.
        churn: Documents added and removed on the way to this state, to judge how much is new.
    """

    def __init__(self, parts: Sequence[Part] = (), churn: int = 0) -> None:
        self.parts = tuple(parts)
        self.num_live = sum(part.num_live for part in parts)
        self.churn = churn

    @classmethod
    def of_segments(cls, segments: Sequence[Segment], dead: Sequence[IntArray] = ()) -> IndexState:
        """A state of segments, oldest first, as few of them as can be.

        Args:
            segments: The documents.
            dead: The removed documents of each segment; none by default.
        """
        gone = list(dead) or [NOTHING_DEAD] * len(segments)
        parts: list[Part] = []
        group: list[int] = []
        for number, segment in enumerate(segments):
            if group and sum(segments[one].squares.nnz for one in group) + segment.squares.nnz > MAX_POSTINGS:
                parts.append(_counted(group, segments, gone))
                group = []
            group.append(number)
        if group:
            parts.append(_counted(group, segments, gone))
        parts = [part for part in parts if len(part.segment)]
        state = cls(parts)
        return cls([Part(p.segment, state._summed(p.segment.terms), p.dead) for p in parts], state.num_live)

    def _summed(self, terms: IntArray) -> Int32Array:
        """Sums up each part's own frequencies of these terms."""
        total = np.zeros(len(terms), dtype=np.int32)
        for part in self.parts:
            found, places = find_sorted(part.segment.terms, terms)
            total[found] += part.frequencies[places]
        return total

    @cached_property
    def weights(self) -> tuple[Weights, ...]:
        """The weights of each part, computed at the first query of this state.

        Two threads that ask at once may both compute them, with the same result.
        """
        idf_of = np.log((1.0 + self.num_live) / np.arange(1.0, self.num_live + 2.0)) + 1.0
        return tuple(_weigh(part, idf_of) for part in self.parts)

    @cached_property
    def ages(self) -> tuple[IntArray, ...]:
        """For each part the rank of its living documents by age within their class, the newest highest.

        Within a scope and class the order of commits rules. Documents of different scopes are compared by
        the latest `created_at` up to them in their scope and class; at equal times the earlier scope, the
        own one first, counts as newer.
        """
        scopes = np.concatenate([part.segment.scopes for part in self.parts])
        offsets = np.cumsum([len(part.segment) for part in self.parts])
        ranks = np.arange(len(scopes))
        if (scopes != scopes[0]).any():
            for label in (0, 1):
                documents = self._living(label)
                times, places = self._commit_times(documents, scopes)
                order = np.lexsort((places, -scopes[documents], times))
                ranks[documents[order]] = np.arange(len(documents))
        return tuple(np.split(ranks, offsets[:-1]))

    def _living(self, label: int) -> IntArray:
        """Positions over all parts of one class's living documents (0: productive), oldest first."""
        found = []
        offset = 0
        for part in self.parts:
            alive = np.ones(len(part.segment), dtype=bool)
            alive[part.dead] = False
            inside = part.segment.slices()[label]
            found.append(offset + inside.start + np.flatnonzero(alive[inside]))
            offset += len(part.segment)
        return np.concatenate(found)

    def _commit_times(self, documents: IntArray, scopes: np.ndarray) -> tuple[FloatArray, IntArray]:
        """Non-decreasing times along each scope, and each document's place in its scope."""
        all_times = np.concatenate([part.segment.times for part in self.parts])
        times = np.empty(len(documents))
        places = np.empty(len(documents), dtype=np.int64)
        for scope in np.unique(scopes[documents]):
            own = np.flatnonzero(scopes[documents] == scope)
            times[own] = np.maximum.accumulate(all_times[documents[own]])
            places[own] = np.arange(len(own))
        return times, places

    def record_id(self, hit: Hit) -> str:
        """The id of the record behind a document."""
        return self.parts[hit.part].segment.ids[hit.document]

    def frequencies_of(self, terms: IntArray) -> Int32Array:
        """In how many living documents each term is, shape of `terms` (sorted)."""
        frequencies = np.zeros(len(terms), dtype=np.int32)
        for part in self.parts:
            found, places = find_sorted(part.segment.terms, terms)
            frequencies[found] = part.frequencies[places]
        return frequencies

    def with_segment(self, segment: Segment) -> IndexState:
        """This state and the documents of a new segment."""
        if not len(segment):
            return self
        own = own_frequencies(segment)
        parts = [
            Part(part.segment, _changed(part, segment.terms, own), part.dead, norms)
            for part, norms in zip(self.parts, self._norms(), strict=True)
        ]
        parts.append(Part(segment, self.frequencies_of(segment.terms) + own, NOTHING_DEAD))
        return IndexState(_merge_newest(parts), self.churn + len(segment))

    def without_records(self, record_ids: Sequence[str]) -> IndexState:
        """This state without some records.

        Raises:
            UnknownRecordError: If one of them is not in it.
        """
        if not record_ids:
            return self
        gone = self._find(record_ids)
        terms = [
            part.segment.terms[part.segment.squares[documents].indices]
            for part, documents in zip(self.parts, gone, strict=True)
        ]
        changed, counts = np.unique(np.concatenate(terms), return_counts=True)
        minus = -counts.astype(np.int32)
        parts = [
            Part(part.segment, _changed(part, changed, minus), np.union1d(part.dead, documents), norms)
            for part, documents, norms in zip(self.parts, gone, self._norms(), strict=True)
        ]
        return IndexState(list(_clear_dead(parts)), self.churn + len(record_ids))

    def _norms(self) -> list[Norms | None]:
        """For each part the norms last computed, for a state to come."""
        weights: tuple[Weights, ...] | None = self.__dict__.get("weights")
        if weights is None:
            return [part.earlier for part in self.parts]
        return [one.norms for one in weights]

    def _find(self, record_ids: Sequence[str]) -> list[IntArray]:
        """The living documents with these ids, by part."""
        wanted = set(record_ids)
        hashes = hash_ids(list(wanted))
        found = []
        for part in self.parts:
            candidates = np.flatnonzero(np.isin(part.segment.ids.hashes, hashes))
            alive = np.setdiff1d(candidates, part.dead, assume_unique=True)
            found.append(alive[[part.segment.ids[int(one)] in wanted for one in alive]])
        missing = len(wanted) - sum(map(len, found))
        if missing:
            raise UnknownRecordError(f"{missing} of {len(wanted)} removed records are not in the index.")
        return found

    def forget_weights(self) -> None:
        """Frees the weights; the next query computes them again."""
        self.__dict__.pop("weights", None)
        self.__dict__.pop("ages", None)

    def num_bytes(self) -> int:
        """Memory of all arrays, those shared with other states included."""
        parts = sum(
            part.segment.num_bytes() + part.dead.nbytes + part.frequencies.nbytes for part in self.parts
        )
        weights = sum(
            one.idf.nbytes + one.norms.idf.nbytes + one.norms.inverse.nbytes for one in self.weights
        )
        return parts + weights + sum(age.nbytes for age in self.ages)


def find_sorted(terms: IntArray, wanted: IntArray) -> tuple[IntArray, IntArray]:
    """Which of the wanted terms are in sorted `terms`, and where: positions in `wanted` and in `terms`."""
    if not len(terms):
        return NOTHING_DEAD, NOTHING_DEAD
    places = np.searchsorted(terms, wanted)
    places[places == len(terms)] = 0
    found = np.flatnonzero(terms[places] == wanted)
    return found, places[found]


def _weigh(part: Part, idf_of: FloatArray) -> Weights:
    """Weighs a part; `idf_of` is the inverse document frequency by frequency, shape (living + 1,).

    A length is the root of a sum of squares with idf as factors, so it changes by no larger factor than the
    idf of any term does. As long as that is little, norms of an earlier state serve as well: the candidates
    become a few more, and their comparison is exact anyway.
    """
    idf = idf_of[part.frequencies]
    if part.earlier is not None:
        factors = (idf / part.earlier.idf)[part.frequencies > 0]
        drift = float(factors.min(initial=1.0)), float(factors.max(initial=1.0))
        if drift[0] >= MAX_DRIFT * drift[1]:
            return Weights(idf, part.earlier, drift)
    norms = np.sqrt(part.segment.squares @ np.square(idf).astype(np.float32))
    inverse = np.divide(np.float32(1.0), norms, out=np.zeros_like(norms), where=norms > 0)
    return Weights(idf, Norms(idf, inverse), (1.0, 1.0))


def _changed(part: Part, terms: IntArray, changes: Int32Array) -> Int32Array:
    """The part's frequencies after these changes; a copy, as older states hold the present ones."""
    found, places = find_sorted(part.segment.terms, terms)
    frequencies = part.frequencies.copy()
    frequencies[places] += changes[found]
    return frequencies


def _counted(group: Sequence[int], segments: Sequence[Segment], dead: Sequence[IntArray]) -> Part:
    """One part of some segments, freed of the dead, with its own frequencies only."""
    segment = segments[group[0]]
    if len(group) > 1 or len(dead[group[0]]):
        segment = merge_segments([segments[one] for one in group], [dead[one] for one in group])
    return Part(segment, own_frequencies(segment), NOTHING_DEAD)


def own_frequencies(segment: Segment) -> Int32Array:
    """In how many of the segment's documents each of its terms is, shape (t,)."""
    return np.bincount(segment.squares.indices, minlength=len(segment.terms)).astype(np.int32)


def _merged(parts: Sequence[Part]) -> Part:
    segment = merge_segments([part.segment for part in parts], [part.dead for part in parts])
    return Part(segment, IndexState(parts).frequencies_of(segment.terms), NOTHING_DEAD)


def _merge_newest(parts: list[Part]) -> list[Part]:
    """Merges the newest parts as long as the next older one is not large enough."""
    first = len(parts) - 1
    size = parts[first].num_live
    postings = parts[first].segment.squares.nnz
    while first:
        older = parts[first - 1]
        postings += older.segment.squares.nnz
        small = older.num_live < MERGE_RATIO * size or older.num_live + size <= SMALL_SEGMENT
        if not small or postings > MAX_POSTINGS:
            break
        first -= 1
        size += older.num_live
    return parts if first == len(parts) - 1 else [*parts[:first], _merged(parts[first:])]


def _clear_dead(parts: Iterable[Part]) -> Iterator[Part]:
    """Rewrites parts with many dead documents and drops those without a living one."""
    for part in parts:
        if part.num_live:
            too_many = len(part.dead) > MAX_DEAD_SHARE * len(part.segment)
            yield _merged([part]) if too_many else part
