"""The features of banked records, computed anew from text where they are missing or of another version."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from ceb_gym.features import FEATURES_VERSION, LOOP_WINDOW, VERSION_KEY, is_repeated, query_features
from ceb_gym.types import HistoryItem, Precedents, Query, Record

_HISTORY_STEPS = 16


def banked_features(records: Sequence[Record]) -> tuple[list[Mapping[str, float]], int]:
    """Each record's features, and how many had to be computed anew from text."""
    rows: list[Mapping[str, float]] = [record.features for record in records]
    stale = [index for index, row in enumerate(rows) if row.get(VERSION_KEY) != FEATURES_VERSION]
    if stale:
        computed = _features_from_text(records)
        for index in stale:
            rows[index] = computed[index]
    return rows, len(stale)


def _features_from_text(records: Sequence[Record]) -> list[Mapping[str, float]]:
    """Features of records that were judged by another version or critic: all but those about precedents."""
    places = sorted(range(len(records)), key=lambda i: (records[i].episode_id, records[i].step_index))
    history: deque[HistoryItem] = deque(maxlen=_HISTORY_STEPS)
    rows: list[Mapping[str, float]] = [{} for _ in records]
    episode = None
    for place in places:
        record = records[place]
        if record.episode_id != episode:
            episode = record.episode_id
            history.clear()
        actions = [item.action for item in history][-LOOP_WINDOW:]
        query = Query(
            env_id="",
            scope=record.scope,
            revision=0,
            episode_id=record.episode_id,
            task=record.task,
            state=record.state,
            action=record.action,
            history=tuple(history),
            repeated=is_repeated(record.action, actions),
            step_index=record.step_index,
        )
        rows[place] = query_features(query, Precedents(), "")
        history.append(HistoryItem(record.state, record.action, record.outcome, True, record.confidence))
    return rows
