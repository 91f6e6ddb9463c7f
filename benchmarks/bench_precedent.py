"""Latency of the `precedent` critic over a bank of records: single judgements and a batch of 64.

Run: python benchmarks/bench_precedent.py [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import islice

from corpus import load_source, records

from ceb_gym.bank.store import SqlBank
from ceb_gym.critics.precedent import PrecedentCritic
from ceb_gym.engine.judging import Judge
from ceb_gym.retrieval.views import TfidfRetriever
from ceb_gym.testing import bank_episode, make_labels, make_step, make_trajectory
from ceb_gym.types import HistoryItem, Pin, Query, Record

EPISODE_STEPS = 8


def filled_bank(texts: list[Record]) -> SqlBank:
    """A bank in memory with the texts as episodes of 8 steps; odd ones are productive."""
    bank = SqlBank("memory:")
    for start in range(0, len(texts), EPISODE_STEPS):
        steps = [
            make_step(index, state=text.state, action=text.action, outcome=text.outcome)
            for index, text in enumerate(texts[start : start + EPISODE_STEPS])
        ]
        trajectory = make_trajectory(f"e{start}", steps)
        labels = make_labels(trajectory)
        bank_episode(bank, trajectory, labels)
    return bank


def queries(texts: list[Record], revision: int) -> list[Query]:
    """Each text as the fifth step of an episode."""
    made = []
    for place in range(4, len(texts)):
        history = tuple(
            HistoryItem(text.state, text.action, text.outcome, True, None)
            for text in texts[place - 4 : place]
        )
        text = texts[place]
        made.append(
            Query("env", "scope", revision, "now", text.task, text.state, text.action, history, False, 4)
        )
    return made


def milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller bank and fewer judgements")
    count, judged = (2_000, 50) if parser.parse_args().quick else (10_000, 300)
    texts = list(islice(records(load_source(), count + judged + 100, 60), count + judged + 100))
    bank = filled_bank(texts[:count])
    pins = (Pin("scope", bank.revision("scope")),)
    asked = queries(texts[count:], pins[0].revision)
    retriever = TfidfRetriever(bank)
    judge = Judge(bank, retriever, PrecedentCritic(), "raise")
    first = milliseconds(lambda: judge.judge(asked[:1], [pins]))
    fitted = PrecedentCritic().fit(bank.records("scope"))
    found = retriever.view(pins).find(asked[:64], fitted.k)
    single = [milliseconds(lambda query=query: judge.judge([query], [pins])) for query in asked[1:judged]]
    batches = [milliseconds(lambda: judge.judge(asked[:64], [pins] * 64)) for _ in range(10)]
    alone = [milliseconds(lambda: fitted.judge(asked[:64], found)) for _ in range(10)]
    print(f"\n### precedent critic, {count:,} records, medians\n")
    print("| what | ms |\n|---|---|")
    print(f"| first judgement: index built, forest fitted | {first:.0f} |")
    print(f"| one judgement | {statistics.median(single):.2f} |")
    print(f"| a batch of 64, precedents given | {statistics.median(alone):.1f} |")
    print(f"| a batch of 64, with retrieval | {statistics.median(batches):.1f} |")


if __name__ == "__main__":
    main()
