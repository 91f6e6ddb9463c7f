"""A bank in memory, and what a full scikit-learn refit of its records would find."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from ceb_gym.errors import RevisionGoneError
from ceb_gym.text import retrieval_key
from ceb_gym.types import Changes, Pin, Query, Record

SAME = 1e-10
"""Similarities closer than this differ by rounding only."""


def record(
    record_id: str, state: str, label: bool, *, scope: str = "own", created_at: float = 0.0, task: str = "do"
) -> Record:
    episode, step = record_id.split(":")[:2]
    return Record(
        record_id=record_id,
        scope=scope,
        episode_id=episode,
        step_index=int(step),
        task=task,
        state=state,
        action="go",
        outcome="",
        label=label,
        vote_share=float(label),
        votes=1,
        confidence=None,
        agrees=None,
        repeated=False,
        critic="",
        labeler="test",
        created_at=created_at,
    )


def query(state: str, *, task: str = "do") -> Query:
    return Query("env", "own", 0, "running", task, state, "go", (), False, 0)


@dataclass
class ScopeHistory:
    """Everything a scope ever held: (record, added revision, removed revision or None), in commit order."""

    entries: list[tuple[Record, int, int | None]] = field(default_factory=list)
    digests: list[str] = field(default_factory=lambda: [""])
    floor: int = 0


class MemoryBank:
    """The part of `protocols.Bank` that retrieval uses."""

    def __init__(self, bank_id: str = "bank") -> None:
        self.bank_id = bank_id
        self.histories: dict[str, ScopeHistory] = {}
        self.calls: list[str] = []

    def commit(self, scope: str, added: Sequence[Record] = (), removed: Sequence[str] = ()) -> int:
        history = self.histories.setdefault(scope, ScopeHistory())
        revision = len(history.digests)
        history.entries = [
            (one, since, revision if one.record_id in removed and until is None else until)
            for one, since, until in history.entries
        ]
        history.entries += [(one, revision, None) for one in added]
        content = f"{history.digests[-1]} {added!r} {sorted(removed)!r}"
        history.digests.append(hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest())
        return revision

    def alive(self, scope: str) -> list[str]:
        return [one.record_id for one, _, until in self.histories[scope].entries if until is None]

    def purge(self, scope: str) -> None:
        history = self.histories[scope]
        history.floor = self.revision(scope)
        history.entries = [entry for entry in history.entries if entry[2] is None]

    def revision(self, scope: str) -> int:
        return len(self.histories[scope].digests) - 1 if scope in self.histories else 0

    def digest(self, scope: str, revision: int) -> str:
        digests = self.histories[scope].digests if scope in self.histories else [""]
        if revision >= len(digests):
            raise RevisionGoneError(f"{scope} has no revision {revision}")
        return digests[revision]

    def records(self, scope: str, *, since: int = 0, until: int | None = None) -> list[Record]:
        self.calls.append("records")
        return self._added(scope, since, until)

    def _added(self, scope: str, since: int, until: int | None) -> list[Record]:
        limit = self.revision(scope) if until is None else until
        history = self.histories.get(scope, ScopeHistory())
        if limit < history.floor:
            raise RevisionGoneError(f"{scope} is purged up to {history.floor}")
        return [
            one
            for one, added, removed in history.entries
            if since < added <= limit and (removed is None or removed > limit)
        ]

    def records_by_id(self, record_ids: Sequence[str]) -> dict[str, Record]:
        self.calls.append("records_by_id")
        wanted = set(record_ids)
        entries = (entry for history in self.histories.values() for entry in history.entries)
        return {one.record_id: one for one, _, _ in entries if one.record_id in wanted}

    def changes(self, scope: str, since: int, until: int) -> Changes:
        self.calls.append("changes")
        history = self.histories.get(scope, ScopeHistory())
        if since < history.floor:
            raise RevisionGoneError(f"{scope} is purged up to {history.floor}")
        removed = [
            one.record_id
            for one, added, gone in history.entries
            if added <= since and gone is not None and since < gone <= until
        ]
        return Changes(tuple(self._added(scope, since, until)), tuple(removed))


def refit_similarities(keys: Sequence[str], wanted: str) -> np.ndarray:
    """Cosine similarity of each key to the wanted one by scikit-learn, fitted to the keys."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2))
    try:
        matrix = vectorizer.fit_transform(keys)
    except ValueError:  # no key has a term
        return np.zeros(len(keys))
    return np.asarray((matrix @ vectorizer.transform([wanted]).T).todense()).ravel()


def ranked(similarities: np.ndarray) -> list[int]:
    """Positions (oldest record first) by similarity, best first, the newest first among equals."""
    order = np.argsort(-similarities, kind="stable")
    level, levels = 0, {}
    for before, one in zip([None, *order[:-1]], order, strict=True):
        if before is not None and similarities[before] - similarities[one] > SAME:
            level += 1
        levels[int(one)] = level
    return sorted(levels, key=lambda one: (levels[one], -one))


def oldest_first(bank: MemoryBank, pins: Sequence[Pin], label: bool) -> list[Record]:
    """One class of the pinned records by age, as documented in `IndexState.ages`."""
    aged = []
    for rank, pin in enumerate(pins):
        time = -np.inf
        for place, one in enumerate(
            one for one in bank.records(pin.scope, until=pin.revision) if one.label == label
        ):
            time = max(time, one.created_at)
            aged.append((time, -rank, place, one))
    return [entry[-1] for entry in sorted(aged, key=lambda entry: entry[:3])]


def expected(
    bank: MemoryBank, pins: Sequence[Pin], wanted: Query, label: bool, k: int
) -> list[tuple[str, float]]:
    """Ids and similarities of the k best records of a class, by a refit over all pinned records."""
    own = oldest_first(bank, pins, label)
    other = oldest_first(bank, pins, not label)
    keys = [retrieval_key(one.task, one.state, one.action) for one in own + other]
    if not own:
        return []
    similarities = refit_similarities(keys, retrieval_key(wanted.task, wanted.state, wanted.action))
    return [(own[one].record_id, float(similarities[one])) for one in ranked(similarities[: len(own)])[:k]]
