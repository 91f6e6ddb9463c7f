"""The exact top k of a state: cheap upper bounds find candidates, which are then compared exactly.

The similarity of a document is a sum over the query's terms. Rare terms carry most of it, frequent ones
cost most of the work. So partial sums over the terms that give most per posting come first. What is left
out can add no more than the length of the query's remaining part (Cauchy and Schwarz), so every document
whose partial sum is that much below the k-th best is out. The rest is compared in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import sparse

from ceb_gym.retrieval.analyzer import EncodedKeys, IntArray, term_codes
from ceb_gym.retrieval.index import Hit, IndexState, Part, find_sorted
from ceb_gym.retrieval.segment import Float32Array, FloatArray

LEFT_OUT = (0.3, 0.1, 0.0)
"""How long the left-out part of a query of length 1 may be, attempt by attempt."""
FEW_CANDIDATES = 400
"""With no more candidates than this, another attempt with more terms would cost more than it saves."""
CANDIDATES_AT_ONCE = 4096
"""Bounds the memory of comparing candidates, of which there are many where many keys are equal."""
TIE_GAP = 1e-10
"""Similarities closer than this are equal but for rounding; the newer record then comes first."""
BLOCK = 64
"""Documents whose maximum is taken together when looking for the k-th best."""


class Match(NamedTuple):
    """A found document and its cosine similarity, in [0, 1]."""

    hit: Hit
    similarity: float


Found = tuple[list[Match], list[Match]]
"""The best productive and the best unproductive documents, best first."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryTerms:
    """The terms of one query that occur in living documents, the most selective first.

    Attributes:
        weights: Shape (m,), what one occurrence in a document adds to the dot product.
        left_out: Shape (m + 1,), length of the query (1 in all) without the first i terms.
        places: For each part, shape (m,), the terms' rows in the postings, -1 where there is none.
    """

    weights: FloatArray
    left_out: FloatArray
    places: tuple[IntArray, ...]


def search(state: IndexState, queries: EncodedKeys, k: int) -> list[Found]:
    """The k best documents of each class for each query."""
    if not state.num_live or k < 1:
        return [([], []) for _ in queries.lengths]
    return [_search_one(state, terms, k) for terms in _weigh_queries(state, queries)]


def _weigh_queries(state: IndexState, queries: EncodedKeys) -> Iterator[QueryTerms]:
    """Looks the terms of all queries up at once and weighs them query by query."""
    codes, owners = term_codes(queries)
    order = np.lexsort((codes, owners))
    codes, owners = codes[order], owners[order]
    changes = (np.diff(codes, prepend=-1) != 0) | (np.diff(owners, prepend=-1) != 0)
    firsts = np.flatnonzero(changes)
    counts = np.diff(firsts, append=len(codes)).astype(np.float64)
    codes = codes[firsts]
    ends = np.searchsorted(owners[firsts], np.arange(len(queries.lengths) + 1))
    places = np.full((len(state.parts), len(codes)), -1, dtype=np.int64)
    frequencies = np.zeros(len(codes), dtype=np.int64)
    idf = np.zeros(len(codes))
    for number, (part, weights) in enumerate(zip(state.parts, state.weights, strict=True)):
        found, rows = find_sorted(part.segment.terms, codes)
        places[number, found] = rows
        frequencies[found] = part.frequencies[rows]
        idf[found] = weights.idf[rows]
    for start, end in pairwise(ends.tolist()):
        own = start + np.flatnonzero(frequencies[start:end])
        yield _weigh_query(counts[own], idf[own], frequencies[own], places[:, own])


def _weigh_query(counts: FloatArray, idf: FloatArray, frequencies: IntArray, places: IntArray) -> QueryTerms:
    values = counts * idf
    length = math.sqrt(math.fsum(np.square(values))) or 1.0
    energies = np.square(values / length)
    order = np.argsort(-energies / frequencies, kind="stable")
    left_out = np.zeros(len(order) + 1)
    left_out[:-1] = np.sqrt(np.cumsum(energies[order][::-1])[::-1])
    return QueryTerms((values * idf / length)[order], left_out, tuple(places[:, order]))


def _search_one(state: IndexState, terms: QueryTerms, k: int) -> Found:
    sums = [np.zeros(len(part.segment), dtype=np.float32) for part in state.parts]
    margin = _rounding_margin(state, terms)
    done = 0
    candidates: list[list[IntArray]] = []
    for limit in LEFT_OUT:
        upto = int(np.argmax(terms.left_out <= limit)) if limit else len(terms.weights)
        if upto > done:
            for part, places, partial in zip(state.parts, terms.places, sums, strict=True):
                _add_postings(part, places[done:upto], terms.weights[done:upto], partial)
            done = upto
        rest = float(terms.left_out[done])
        candidates = _candidates(state, sums, k, rest, margin)
        if rest == 0 or sum(len(one) for pair in candidates for one in pair) <= FEW_CANDIDATES:
            break
    productive, unproductive = (
        _best(state, terms, candidates_of_class, k) for candidates_of_class in candidates
    )
    return productive, unproductive


def _rounding_margin(state: IndexState, terms: QueryTerms) -> float:
    """How far two single-precision similarities can be off together, at the very most."""
    longest = max(part.segment.longest for part in state.parts)
    return 2.0**-23 * (len(terms.weights) + longest / 2 + 8) + TIE_GAP


def _add_postings(part: Part, places: IntArray, weights: FloatArray, sums: Float32Array) -> None:
    """Adds what some terms contribute to the dot products of all documents of a part."""
    present = places >= 0
    starts = part.segment.starts[places[present]]
    ends = part.segment.starts[places[present] + 1]
    if not len(starts):
        return
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    documents = np.concatenate([part.segment.documents[start:end] for start, end in spans])
    bounds = np.zeros(len(starts) + 1, dtype=np.int32)
    np.cumsum(ends - starts, out=bounds[1:])
    shape = (len(sums), len(starts))
    occurrences = sparse.csc_matrix((_ones(len(documents)), documents, bounds), shape)
    sums += occurrences @ weights[present].astype(np.float32)


_longest_ones = np.ones(0, dtype=np.float32)


def _ones(length: int) -> Float32Array:
    """Ones, of which only the longest array ever asked for is kept."""
    global _longest_ones
    ones = _longest_ones
    if len(ones) < length:
        ones = _longest_ones = np.ones(2 * length, dtype=np.float32)
    return ones[:length]


def _candidates(
    state: IndexState, sums: Sequence[Float32Array], k: int, rest: float, margin: float
) -> list[list[IntArray]]:
    """For each class and part the documents that may be among the k best.

    Args:
        state: The documents.
        sums: For each part their dot products with the query, but for the terms left out so far.
        k: How many per class are wanted.
        rest: What the terms left out can add to a similarity at most.
        margin: What rounding can do at most.
    """
    scores = []
    for part, weights, partial in zip(state.parts, state.weights, sums, strict=True):
        score = partial * weights.inverse_norms
        score[part.dead] = -1.0
        scores.append(score)
    found = []
    for label in (0, 1):
        ranges = [part.segment.slices()[label] for part in state.parts]
        of_class = [score[inside] for score, inside in zip(scores, ranges, strict=True)]
        limit = _kth_best(of_class, k) - rest - margin
        if limit > 0:
            chosen = [np.flatnonzero(score >= limit) for score in of_class]
        elif rest:
            chosen = [np.flatnonzero(score >= 0) for score in of_class]
        else:
            ages = [age[inside] for age, inside in zip(state.ages, ranges, strict=True)]
            chosen = _similar_or_newest(of_class, ages, k)
        found.append([inside.start + one for inside, one in zip(ranges, chosen, strict=True)])
    return found


def _kth_best(scores: Sequence[Float32Array], k: int) -> float:
    """A lower bound of the k-th largest score: of blocks with k different maxima, the smallest maximum."""
    maxima = []
    for score in scores:
        whole = len(score) // BLOCK * BLOCK if len(score) >= BLOCK * k else 0
        maxima.append(score[:whole].reshape(-1, BLOCK).max(axis=1))
        maxima.append(score[whole:])
    best = np.concatenate(maxima)
    return float(np.partition(best, len(best) - k)[len(best) - k]) if len(best) >= k else -1.0


def _similar_or_newest(scores: Sequence[Float32Array], ages: Sequence[IntArray], k: int) -> list[IntArray]:
    """All documents that share a term with the query, and the k newest: one that shares none scores 0."""
    living = np.concatenate([age[score >= 0] for score, age in zip(scores, ages, strict=True)])
    newest = np.partition(living, len(living) - k)[len(living) - k] if len(living) > k else 0
    return [
        np.flatnonzero((score > 0) | ((score >= 0) & (age >= newest)))
        for score, age in zip(scores, ages, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Scorer:
    """Compares documents of one part with one query in double precision.

    Attributes:
        part: The documents.
        idf: Shape (t,).
        query: Shape (t,), what one occurrence of each term adds to the dot product.
    """

    part: Part
    idf: FloatArray
    query: FloatArray

    @classmethod
    def of(cls, state: IndexState, terms: QueryTerms, number: int) -> _Scorer:
        part, places = state.parts[number], terms.places[number]
        query = np.zeros(len(part.segment.terms))
        query[places[places >= 0]] = terms.weights[places >= 0]
        return cls(part, state.weights[number].idf, query)

    def similarities(self, documents: IntArray) -> FloatArray:
        """Cosine similarity of each document, shape of `documents`."""
        result = np.zeros(len(documents))
        for start in range(0, len(documents), CANDIDATES_AT_ONCE):
            block = documents[start : start + CANDIDATES_AT_ONCE]
            starts = self.part.segment.squares.indptr[block].astype(np.int64)
            lengths = self.part.segment.squares.indptr[block + 1] - starts
            ends = np.cumsum(lengths)
            products, squares = self._contributions(
                np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1])
            )
            filled = np.flatnonzero(lengths)
            if len(filled):
                firsts = (ends - lengths)[filled]
                dots, norms = np.add.reduceat(products, firsts), np.add.reduceat(squares, firsts)
                result[start + filled] = dots / np.sqrt(norms)
        return result

    def exact_similarity(self, document: int) -> float:
        """The same for one document, correctly rounded sums: equal for any order of the terms."""
        first, last = self.part.segment.squares.indptr[document : document + 2]
        products, squares = self._contributions(slice(first, last))
        norm = math.fsum(squares.tolist())
        return math.fsum(products.tolist()) / math.sqrt(norm) if norm else 0.0

    def _contributions(self, positions: IntArray | slice) -> tuple[FloatArray, FloatArray]:
        """What single entries of the document rows add to the dot product and to the squared length."""
        columns = self.part.segment.squares.indices[positions]
        counts = np.rint(np.sqrt(self.part.segment.squares.data[positions].astype(np.float64)))
        return self.query[columns] * counts, np.square(self.idf[columns] * counts)


def _best(state: IndexState, terms: QueryTerms, candidates: Sequence[IntArray], k: int) -> list[Match]:
    """The k best of one class's candidates, which are given by part; the newest first among equals."""
    hits: list[Hit] = []
    similarities: list[FloatArray] = []
    ages: list[IntArray] = []
    scorers: dict[int, _Scorer] = {}
    for number, documents in enumerate(candidates):
        if len(documents):
            scorers[number] = _Scorer.of(state, terms, number)
            hits += [Hit(number, int(document)) for document in documents]
            similarities.append(scorers[number].similarities(documents))
            ages.append(state.ages[number][documents])
    if not hits:
        return []
    chosen = [hits[one] for one in _ranked(np.concatenate(similarities), np.concatenate(ages))[:k]]
    values = [scorers[hit.part].exact_similarity(hit.document) for hit in chosen]
    for number in range(len(values) - 2, -1, -1):
        values[number] = max(values[number], values[number + 1])
    return [Match(hit, min(1.0, value)) for hit, value in zip(chosen, values, strict=True)]


def _ranked(similarities: FloatArray, ages: IntArray) -> IntArray:
    """Positions by similarity, best first; among equals (closer than TIE_GAP) the newest first."""
    order = np.argsort(-similarities, kind="stable")
    ranked = similarities[order]
    level = np.zeros(len(order), dtype=np.int64)
    level[1:] = np.cumsum(ranked[:-1] - ranked[1:] > TIE_GAP)
    return order[np.lexsort((-ages[order], level))]
