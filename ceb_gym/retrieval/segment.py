"""Immutable pieces of an index: term counts by document and by term, and what names the documents.

Within a segment the productive documents come first, then the unproductive ones, each in the order of
their commits, so that each class is one contiguous slice of any array over documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ceb_gym.retrieval.analyzer import EncodedKeys, Int32Array, IntArray, pair_codes

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class RecordIds:
    """Many record ids in little memory.

    Attributes:
        text: Shape (total bytes,), all ids as UTF-8, one after the other.
        ends: Shape (n,), where each id ends in `text`.
        hashes: Shape (n,), a stable 64-bit hash of each id, to find it by.
    """

    text: NDArray[np.uint8]
    ends: IntArray
    hashes: IntArray

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, document: int) -> str:
        start = int(self.ends[document - 1]) if document else 0
        return self.text[start : int(self.ends[document])].tobytes().decode("utf-8")

    def take(self, documents: IntArray) -> RecordIds:
        """The ids of these documents, in this order."""
        lengths = np.diff(self.ends, prepend=0)
        taken = lengths[documents]
        ends = np.cumsum(taken)
        source = np.repeat((self.ends - lengths)[documents] - (ends - taken), taken)
        return RecordIds(self.text[source + np.arange(len(source))], ends, self.hashes[documents])


def pack_ids(record_ids: Sequence[str]) -> RecordIds:
    """Packs ids."""
    encoded = [record_id.encode("utf-8") for record_id in record_ids]
    return RecordIds(
        np.frombuffer(b"".join(encoded), dtype=np.uint8),
        np.cumsum([len(one) for one in encoded], dtype=np.int64),
        hash_ids(record_ids),
    )


def hash_ids(record_ids: Sequence[str]) -> IntArray:
    """A stable 64-bit hash of each id, shape (n,)."""
    digests = (hashlib.blake2b(one.encode("utf-8"), digest_size=8).digest() for one in record_ids)
    return np.frombuffer(b"".join(digests), dtype=np.int64)


def join_ids(parts: Sequence[RecordIds]) -> RecordIds:
    """All ids of all parts, in order."""
    offsets = np.cumsum([0, *(len(part.text) for part in parts)])
    return RecordIds(
        np.concatenate([part.text for part in parts]),
        np.concatenate([part.ends + offset for part, offset in zip(parts, offsets, strict=False)]),
        np.concatenate([part.hashes for part in parts]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Some documents (records, seen through their keys) and the terms in them.

    Attributes:
        terms: Shape (t,), term codes, strictly increasing.
        squares: Sparse (n, t) float32 by document: squared counts, terms in increasing order. Square roots,
            rounded, give the counts back exactly (below 2**25).
        starts: Shape (t + 1,), where the postings of each term start in `documents`.
        documents: Shape (postings,), for each term the documents it is in, increasing.
        counts: Shape (postings,), how often it occurs in each of them; single precision, as `squares`.
        num_productive: How many of the n documents, the first ones, are productive.
        scopes: Shape (n,), number of each document's scope.
        times: Shape (n,), `Record.created_at`, seconds since the epoch.
        ids: The record ids.
        longest: Number of different terms in the document that has most.
    """

    terms: IntArray
    squares: Any
    starts: Int32Array
    documents: Int32Array
    counts: Float32Array
    num_productive: int
    scopes: NDArray[np.int16]
    times: FloatArray
    ids: RecordIds
    longest: int

    def __len__(self) -> int:
        return len(self.scopes)

    def slices(self) -> tuple[slice, slice]:
        """Where the productive and the unproductive documents are."""
        return slice(0, self.num_productive), slice(self.num_productive, len(self))

    def num_bytes(self) -> int:
        """Memory of all arrays."""
        return sum(
            array.nbytes
            for array in (
                self.terms,
                self.squares.data,
                self.squares.indices,
                self.squares.indptr,
                self.starts,
                self.documents,
                self.counts,
                self.scopes,
                self.times,
                self.ids.text,
                self.ids.ends,
                self.ids.hashes,
            )
        )


def build_segment(
    encoded: EncodedKeys,
    num_words: int,
    num_productive: int,
    scopes: NDArray[np.int16],
    times: FloatArray,
    ids: RecordIds,
) -> Segment:
    """Counts the terms of encoded keys (productive documents first; no unknown words).

    Args:
        encoded: The keys.
        num_words: All word numbers are below it.
        num_productive: How many of the first keys are productive.
        scopes: Shape (n,).
        times: Shape (n,), seconds since the epoch.
        ids: The n record ids.
    """
    words, owners = encoded.words, encoded.owners()
    by_word = _stable_order(words, num_words)
    singles = _count_runs((words[by_word],), owners[by_word])
    paired = np.flatnonzero(owners[:-1] == owners[1:]).astype(np.int32)
    by_second = paired[_stable_order(words[paired + 1], num_words)]
    by_pair = by_second[_stable_order(words[by_second], num_words)]
    pairs = _count_runs((words[by_pair], words[by_pair + 1]), owners[by_pair])
    terms = np.concatenate([singles.names[0].astype(np.int64), pair_codes(*pairs.names)])
    starts = np.concatenate([singles.starts, pairs.starts[1:] + singles.starts[-1]])
    counts = np.concatenate([singles.counts, pairs.counts])
    documents = np.concatenate([singles.documents, pairs.documents])
    squares = sparse.csr_matrix((np.square(counts), documents, starts), (len(terms), len(ids))).T.tocsr()
    return assemble(terms, squares, num_productive, scopes, times, ids)


def assemble(
    terms: IntArray,
    squares: Any,
    num_productive: int,
    scopes: NDArray[np.int16],
    times: FloatArray,
    ids: RecordIds,
) -> Segment:
    """Makes a segment from its squared counts."""
    by_term = squares.tocsc()
    np.rint(np.sqrt(by_term.data, out=by_term.data), out=by_term.data)
    return Segment(
        terms,
        squares,
        by_term.indptr.astype(np.int32, copy=False),
        by_term.indices.astype(np.int32, copy=False),
        by_term.data,
        num_productive,
        scopes,
        times,
        ids,
        int(np.diff(squares.indptr).max(initial=0)),
    )


def _stable_order(numbers: Int32Array, limit: int) -> Int32Array:
    """Stable argsort of numbers in [0, limit): a counting sort (in C, by scipy) unless `limit` is large."""
    if len(numbers) < limit:
        return np.argsort(numbers, kind="stable").astype(np.int32)
    rows = np.arange(len(numbers) + 1, dtype=np.int32)
    one_per_row = sparse.csr_matrix((np.zeros(len(numbers), np.int8), numbers, rows), (len(numbers), limit))
    order: Int32Array = one_per_row.tocsc().indices
    return order


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Postings of sorted occurrences: the terms' names, where their postings start, documents and counts."""

    names: tuple[Int32Array, ...]
    starts: Int32Array
    documents: Int32Array
    counts: Float32Array


def _count_runs(names: tuple[Int32Array, ...], documents: Int32Array) -> _Runs:
    """Counts equal neighbours among occurrences that are sorted by name, then by document."""
    new_term = np.zeros(len(documents), dtype=bool)
    new_term[:1] = True
    for name in names:
        new_term[1:] |= name[1:] != name[:-1]
    new_pair = new_term.copy()
    new_pair[1:] |= documents[1:] != documents[:-1]
    firsts = np.flatnonzero(new_pair)
    counts = np.diff(firsts, append=len(documents)).astype(np.float32)
    starts = np.append(np.flatnonzero(new_term[firsts]), len(firsts)).astype(np.int32)
    return _Runs(tuple(name[new_term] for name in names), starts, documents[firsts], counts)


def merge_segments(segments: Sequence[Segment], dead: Sequence[IntArray]) -> Segment:
    """One segment of all living documents of neighbouring segments, oldest segment first.

    Args:
        segments: What to merge; one segment alone is freed of its dead documents.
        dead: The dead documents of each segment.
    """
    offsets = np.cumsum([0, *(len(segment) for segment in segments)])
    alive = np.ones(offsets[-1], dtype=bool)
    for offset, documents in zip(offsets, dead, strict=False):
        alive[offset + documents] = False
    classes = []
    for label in (0, 1):
        ranges = [segment.slices()[label] for segment in segments]
        joined = np.concatenate(
            [np.arange(offset + r.start, offset + r.stop) for offset, r in zip(offsets, ranges, strict=False)]
        )
        classes.append(joined[alive[joined]])
    order = np.concatenate(classes)
    terms = _union([segment.terms for segment in segments])
    squares = sparse.vstack([_renamed(segment, terms) for segment in segments], format="csr")[order]
    used = np.flatnonzero(np.bincount(squares.indices, minlength=len(terms)))
    if len(used) < len(terms):
        new_numbers = np.zeros(len(terms), dtype=np.int32)
        new_numbers[used] = np.arange(len(used), dtype=np.int32)
        squares = sparse.csr_matrix(
            (squares.data, new_numbers[squares.indices], squares.indptr), (len(order), len(used))
        )
    return assemble(
        terms[used],
        squares,
        len(classes[0]),
        np.concatenate([segment.scopes for segment in segments])[order],
        np.concatenate([segment.times for segment in segments])[order],
        join_ids([segment.ids for segment in segments]).take(order),
    )


def _union(sorted_arrays: Sequence[IntArray]) -> IntArray:
    """All different values; a stable sort merges sorted runs, which is faster than `np.unique`."""
    values: IntArray = np.sort(np.concatenate(sorted_arrays), kind="stable")
    different: IntArray = values[np.diff(values, prepend=-1) != 0]
    return different


def _renamed(segment: Segment, terms: IntArray) -> Any:
    """The segment's squares with its terms numbered as in `terms`, which holds all of them."""
    numbers = np.searchsorted(terms, segment.terms).astype(np.int32)
    rows = segment.squares
    return sparse.csr_matrix((rows.data, numbers[rows.indices], rows.indptr), (rows.shape[0], len(terms)))
