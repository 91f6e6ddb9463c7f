"""Measures the index beside tantivy and scikit-learn, in one run on the same keys; prints Markdown.

    python benchmarks/bench_retrieval.py [--quick]

Every figure is for one thread. The engines take turns, 8 queries at a time, so that a busy machine slows
all alike.
tantivy: index in memory, writer with one thread and 256 MB, merged to the end; the same terms (words and
word pairs, joined by "_") for a white-space tokenizer, frequencies without positions; a query is two BM25
searches, one per class, each a conjunction of the class and of the disjunction of the terms.
scikit-learn: `TfidfVectorizer(ngram_range=(1, 2))`, fitted before; a query is transform, product, top k.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import tantivy
from sklearn.feature_extraction.text import TfidfVectorizer

from ceb_gym.retrieval.analyzer import words_of
from ceb_gym.retrieval.index import IndexState
from ceb_gym.retrieval.lineage import Lineage
from ceb_gym.retrieval.search import search
from ceb_gym.text import retrieval_key
from ceb_gym.types import Changes, Record

K = 2
NUM_QUERIES = 64
TURN = 8
LIMITS_AT = 20_000


class ListBank:
    """A bank of one scope that holds records in a list: nothing but the index is measured."""

    bank_id = "bench"

    def __init__(self, records: list[Record], built: int) -> None:
        self._records = records
        self._built = built

    def _place(self, revision: int) -> int:
        """How many records there are at a revision: at 1 those built at once, then an episode more each."""
        return self._built + (revision - 1) * corpus.STEPS_PER_EPISODE if revision else 0

    def revision_of_all(self) -> int:
        return 1 + (len(self._records) - self._built) // corpus.STEPS_PER_EPISODE

    def digest(self, scope: str, revision: int) -> str:
        return f"{scope} {revision}"

    def records(self, scope: str, *, since: int = 0, until: int) -> list[Record]:
        return self._records[self._place(since) : self._place(until)]

    def changes(self, scope: str, since: int, until: int) -> Changes:
        return Changes(tuple(self.records(scope, since=since, until=until)), ())


@dataclass
class Measured:
    """Figures of our index at one size: seconds, and bytes per record."""

    num_records: int
    build_s: float
    append_median_s: float
    append_mean_s: float
    append_max_s: float
    query_s: float
    batch_query_s: float
    bytes_per_record: float
    segments: int


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def key_of(record: Record) -> str:
    return retrieval_key(record.task, record.state, record.action)


def settled(lineage: Lineage, revision: int) -> IndexState:
    """The state with what its first query would compute."""
    state = lineage.at((revision,))
    _ = state.weights, state.ages
    return state


def ask(lineage: Lineage, state: IndexState, keys: Sequence[str]) -> list[list[str]]:
    found = search(state, lineage.vocabulary.look_up(keys), K)
    return [[state.record_id(match.hit) for side in pair for match in side] for pair in found]


def vocabulary_bytes(lineage: Lineage) -> int:
    words = lineage.vocabulary.words()
    return sum(map(sys.getsizeof, words)) + sys.getsizeof(dict.fromkeys(words)) + 32 * len(words)


def measure_index(
    records: list[Record], num_appends: int, keys: Sequence[str]
) -> tuple[Measured, Lineage, IndexState]:
    built = len(records) - num_appends * corpus.STEPS_PER_EPISODE
    bank = ListBank(records, built)
    lineage = Lineage(bank, ("bench",), None)  # type: ignore[arg-type]  # the part of a bank that is used
    state, build_s = timed(lambda: settled(lineage, 1))
    appends = []
    for revision in range(2, bank.revision_of_all() + 1):
        state, seconds = timed(lambda at=revision: settled(lineage, at))
        appends.append(seconds)
    queries = [timed(lambda one=key: ask(lineage, state, [one]))[1] for key in keys]
    batches = [timed(lambda: ask(lineage, state, keys))[1] / len(keys) for _ in range(3)]
    measured = Measured(
        len(records),
        build_s * len(records) / built,
        statistics.median(appends),
        statistics.fmean(appends),
        max(appends),
        statistics.median(queries),
        statistics.median(batches),
        (state.num_bytes() + vocabulary_bytes(lineage)) / len(records),
        len(state.parts),
    )
    return measured, lineage, state


def terms_of(key: str) -> list[str]:
    words = words_of(key)
    return words + [f"{first}_{second}" for first, second in pairwise(words)]


class Tantivy:
    """The same keys in tantivy."""

    def __init__(self) -> None:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("terms", stored=False, tokenizer_name="spaces", index_option="freq")
        builder.add_text_field("label", stored=False, tokenizer_name="raw", index_option="basic")
        builder.add_text_field("record_id", stored=True, tokenizer_name="raw", index_option="basic")
        self._schema = builder.build()
        self._index = tantivy.Index(self._schema)
        spaces = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
        self._index.register_tokenizer("spaces", spaces)

    def build(self, records: Sequence[Record]) -> None:
        writer = self._index.writer(heap_size=256_000_000, num_threads=1)
        for record in records:
            document = tantivy.Document()
            document.add_text("terms", " ".join(terms_of(key_of(record))))
            document.add_text("label", "p" if record.label else "u")
            document.add_text("record_id", record.record_id)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()
        self._searcher = self._index.searcher()

    def ask(self, key: str) -> list[str]:
        query, must, should = tantivy.Query, tantivy.Occur.Must, tantivy.Occur.Should
        some = query.boolean_query(
            [(should, query.term_query(self._schema, "terms", term, "freq")) for term in set(terms_of(key))]
        )
        found = []
        for label in "pu":
            own = query.const_score_query(query.term_query(self._schema, "label", label), 0.0)
            hits = self._searcher.search(
                query.boolean_query([(must, own), (must, some)]), K, count=False
            ).hits
            found += [self._searcher.doc(address).get_first("record_id") for _, address in hits]
        return found


class Refit:
    """The same keys in scikit-learn."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._vectorizer = TfidfVectorizer(ngram_range=(1, 2))
        keys = [key_of(record) for record in records]
        self._matrix, self.fit_s = timed(lambda: self._vectorizer.fit_transform(keys))
        labels = np.array([record.label for record in records])
        self._classes = [np.flatnonzero(labels), np.flatnonzero(~labels)]
        self._ids = [record.record_id for record in records]

    def ask(self, key: str) -> list[str]:
        similarities = (self._matrix @ self._vectorizer.transform([key]).T).toarray().ravel()
        found = []
        for own in self._classes:
            scores = similarities[own]
            best = np.argpartition(scores, len(scores) - K)[-K:]
            found += [self._ids[own[one]] for one in best[np.argsort(-scores[best])]]
        return found


def alternate(calls: Sequence[Callable[[str], Any]], keys: Sequence[str]) -> list[float]:
    """Median seconds of each call over the keys; the calls take turns, a block of keys at a time."""
    seconds: list[list[float]] = [[] for _ in calls]
    for start in range(0, len(keys), TURN):
        for call, own in zip(calls, seconds, strict=True):
            own += [
                timed(lambda one=key, ask_one=call: ask_one(one))[1] for key in keys[start : start + TURN]
            ]
    return [statistics.median(own) for own in seconds]


def reopen_seconds(records: list[Record]) -> tuple[float, float, int]:
    """Median seconds to open from a snapshot and to rebuild, and the size of the file."""
    bank: Any = ListBank(records, len(records))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.npz"
        first = Lineage(bank, ("bench",), path)
        settled(first, 1)
        first.save()
        opened = [timed(lambda: settled(Lineage(bank, ("bench",), path), 1))[1] for _ in range(3)]
        rebuilt = [timed(lambda: settled(Lineage(bank, ("bench",), None), 1))[1] for _ in range(3)]
        return statistics.median(opened), statistics.median(rebuilt), path.stat().st_size


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def ratio_row(name: str, ours: float, theirs: float, limit: float | None) -> None:
    ratio = ours / theirs
    verdict = ("-", "-") if limit is None else (limit, "yes" if ratio <= limit else "NO")
    row(name, f"{ours * 1e3:.2f}", f"{theirs * 1e3:.2f}", f"{ratio:.4f}", *verdict)


def compare(source: corpus.SourceText, words: int, size: int, num_appends: int) -> None:
    records = list(corpus.records(source, size, words))
    keys = [key_of(one) for one in corpus.records(source, NUM_QUERIES, words, seed=1)]
    refit = Refit(records)
    measured, lineage, state = measure_index(records, num_appends, keys)
    builds, tantivy_builds = [measured.build_s], []
    for _ in range(3):
        bank: Any = ListBank(records, len(records))
        builds.append(timed(lambda b=bank: settled(Lineage(b, ("bench",), None), 1))[1])
        engine = Tantivy()
        tantivy_builds.append(timed(lambda e=engine: e.build(records))[1])
    fits = [refit.fit_s, Refit(records).fit_s, Refit(records).fit_s]
    ours, bm25, product = alternate([lambda key: ask(lineage, state, [key]), engine.ask, refit.ask], keys)
    opened, rebuilt, file_bytes = reopen_seconds(records)
    print(
        f"\n### {size:,} keys of {words} words (after {num_appends} appends; {measured.segments} segments)\n"
    )

    def limit(value: float) -> float | None:
        return value if size == LIMITS_AT else None

    row("", "ours ms", "theirs ms", "ratio", "limit", "met")
    row("---", "---:", "---:", "---:", "---:", "---")
    ratio_row("query / tantivy", ours, bm25, limit(0.5))
    ratio_row("query / scikit-learn", ours, product, limit(0.12))
    ratio_row("append, median / refit", measured.append_median_s, statistics.median(fits), limit(0.004))
    ratio_row("append, mean / refit", measured.append_mean_s, statistics.median(fits), limit(0.004))
    ratio_row("build / tantivy", statistics.median(builds), statistics.median(tantivy_builds), limit(1.5))
    ratio_row("open snapshot / rebuild", opened, rebuilt, limit(0.2))
    print(f"\nSnapshot: {file_bytes / 2**20:.1f} MiB. A batch of {NUM_QUERIES} queries: "
          f"{measured.batch_query_s * 1e3:.2f} ms each.")  # fmt: skip


def growth(source: corpus.SourceText, words: int, sizes: Sequence[int], num_appends: int) -> None:
    print(f"\n### Growth, keys of {words} words\n")
    row(
        "records",
        "build s",
        "append median ms",
        "mean ms",
        "max ms",
        "query ms",
        "in batch ms",
        "bytes a record",
    )
    row(*["---:"] * 8)
    keys = [key_of(one) for one in corpus.records(source, NUM_QUERIES, words, seed=1)]
    for size in sizes:
        records = list(corpus.records(source, size, words))
        measured, _, _ = measure_index(records, num_appends, keys)
        row(
            f"{size:,}",
            f"{measured.build_s:.2f}",
            *(
                f"{one * 1e3:.1f}"
                for one in (measured.append_median_s, measured.append_mean_s, measured.append_max_s)
            ),
            f"{measured.query_s * 1e3:.2f}",
            f"{measured.batch_query_s * 1e3:.2f}",
            f"{measured.bytes_per_record:.0f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the index beside tantivy and scikit-learn.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    quick = parser.parse_args().quick
    size, sizes = (2_000, (500, 2_000, 10_000)) if quick else (LIMITS_AT, (5_000, 20_000, 100_000))
    appends = 40 if quick else 300
    source = corpus.load_source()
    print("## Retrieval\n")
    print(f"Text: {source.name}. k = {K} per class; medians; limits are for 20,000 keys.")
    for words in (60, 150):
        compare(source, words, size, appends)
    for words in (60, 150):
        growth(source, words, sizes, appends)
    if not quick:
        print("\nLimits at 100,000 records: query 10 ms, append 40 ms.")


if __name__ == "__main__":
    main()
