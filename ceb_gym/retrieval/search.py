"""The exact top k of a state: rough scores find candidates, which are then compared exactly.

Rough scores are fast: single precision, and lengths of documents that may be of a slightly earlier state.
How far they can be off is known, so every document that may be among the k best is a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ceb_gym.retrieval.analyzer import EncodedKeys, IntArray, term_codes
from ceb_gym.retrieval.columns import add_columns
from ceb_gym.retrieval.index import Hit, IndexState, Part, Weights, find_sorted
from ceb_gym.retrieval.segment import Float32Array, FloatArray

CANDIDATES_AT_ONCE = 4096
"""Bounds the memory of comparing candidates, of which there are many where many keys are equal."""
FEW_CANDIDATES = 12
"""Up to this many are compared one by one, by sums that are exact; of more, only the chosen ones are."""
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
    """The terms of one query that occur in living documents.

    Attributes:
        weights: Shape (m,), what one occurrence in a document adds to the dot product.
        places: For each part, shape (m,), the terms' numbers in its segment, -1 where there is none.
    """

    weights: FloatArray
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
    new = np.ones(len(codes), dtype=bool)
    np.logical_or(codes[1:] != codes[:-1], owners[1:] != owners[:-1], out=new[1:])
    firsts = np.flatnonzero(new)
    counts = np.append(firsts[1:], len(codes)) - firsts
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
        values = counts[own] * idf[own]
        length = math.sqrt(math.fsum(np.square(values))) or 1.0
        yield QueryTerms(values * idf[own] / length, tuple(places[:, own]))


def _search_one(state: IndexState, terms: QueryTerms, k: int) -> Found:
    scores = [
        _rough_scores(*each, terms.weights)
        for each in zip(state.parts, state.weights, terms.places, strict=True)
    ]
    tolerance = _tolerance(state, terms)
    scorers = [
        _Scorer(*each, terms.weights) for each in zip(state.parts, state.weights, terms.places, strict=True)
    ]
    productive, unproductive = (
        _best(state, scorers, _candidates(state, scores, label, k, tolerance), k) for label in (0, 1)
    )
    return productive, unproductive


class Tolerance(NamedTuple):
    """A document with a rough score below `share * other - margin` is surely worse than the other one."""

    share: float
    margin: float


def _tolerance(state: IndexState, terms: QueryTerms) -> Tolerance:
    """How far rough scores can be off at the very most: by the drift of norms, and by rounding."""
    least = min(weights.drift[0] for weights in state.weights)
    most = max(weights.drift[1] for weights in state.weights)
    longest = max(part.segment.longest for part in state.parts)
    rounding = 2.0**-23 * (len(terms.weights) + longest / 2 + 8)
    return Tolerance(least / most, (rounding + TIE_GAP) * most)


def _rough_scores(part: Part, weights: Weights, places: IntArray, query: FloatArray) -> Float32Array:
    """Rough similarities of all documents of a part; -1 for dead ones."""
    scores = np.zeros(len(part.segment), dtype=np.float32)
    segment, present = part.segment, places >= 0
    factors = query[present].astype(np.float32)
    add_columns(segment.starts, segment.documents, segment.counts, places[present], factors, scores)
    scores *= weights.norms.inverse
    scores[part.dead] = -1.0
    return scores


def _candidates(
    state: IndexState, scores: Sequence[Float32Array], label: int, k: int, tolerance: Tolerance
) -> list[IntArray]:
    """For each part the documents of a class (0: productive) that may be among its k best."""
    ranges = [part.segment.slices()[label] for part in state.parts]
    of_class = [score[inside] for score, inside in zip(scores, ranges, strict=True)]
    limit = tolerance.share * _kth_best(of_class, k) - tolerance.margin
    if limit > 0:
        chosen = [np.flatnonzero(score >= limit) for score in of_class]
    else:
        ages = [age[inside] for age, inside in zip(state.ages, ranges, strict=True)]
        chosen = _similar_or_newest(of_class, ages, k)
    return [inside.start + one for inside, one in zip(ranges, chosen, strict=True)]


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


@dataclass(frozen=True, eq=False)
class _Scorer:
    """Compares documents of one part with one query in double precision.

    Attributes:
        part: The documents.
        part_weights: Their weights.
        places: Shape (m,), numbers of the query's terms in the segment, -1 where there is none.
        term_weights: Shape (m,), what one occurrence of each adds to the dot product.
    """

    part: Part
    part_weights: Weights
    places: IntArray
    term_weights: FloatArray

    @cached_property
    def _query(self) -> FloatArray:
        """Shape (t,), the weights of the query's terms at their numbers."""
        query = np.zeros(len(self.part.segment.terms))
        query[self.places[self.places >= 0]] = self.term_weights[self.places >= 0]
        return query

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
        return self._query[columns] * counts, np.square(self.part_weights.idf[columns] * counts)


def _best(
    state: IndexState, scorers: Sequence[_Scorer], candidates: Sequence[IntArray], k: int
) -> list[Match]:
    """The k best of one class's candidates, which are given by part; the newest first among equals."""
    hits = [Hit(part, document) for part, own in enumerate(candidates) for document in own.tolist()]
    if not hits:
        return []
    used = [part for part, own in enumerate(candidates) if len(own)]
    ages = np.concatenate([state.ages[part][candidates[part]] for part in used])

    def exact(positions: Iterable[int]) -> list[float]:
        return [scorers[hits[one].part].exact_similarity(hits[one].document) for one in positions]

    if len(hits) <= FEW_CANDIDATES:
        similarities = np.array(exact(range(len(hits))))
    else:
        similarities = np.concatenate([scorers[part].similarities(candidates[part]) for part in used])
    chosen = _ranked(similarities, ages)[:k].tolist()
    values = exact(chosen) if len(hits) > FEW_CANDIDATES else similarities[chosen].tolist()
    for place in range(len(values) - 2, -1, -1):
        values[place] = max(values[place], values[place + 1])
    return [Match(hits[one], min(1.0, value)) for one, value in zip(chosen, values, strict=True)]


def _ranked(similarities: FloatArray, ages: IntArray) -> IntArray:
    """Positions by similarity, best first; among equals (closer than TIE_GAP) the newest first."""
    order = np.argsort(-similarities, kind="stable")
    ranked = similarities[order]
    level = np.zeros(len(order), dtype=np.int64)
    level[1:] = np.cumsum(ranked[:-1] - ranked[1:] > TIE_GAP)
    return order[np.lexsort((-ages[order], level))]
