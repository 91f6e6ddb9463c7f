"""Retrieval keys of any number, recombined from the text of real agent logs (or of a stand-in)."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ceb_gym.retrieval.analyzer import words_of
from ceb_gym.text import retrieval_key
from ceb_gym.types import Record

STEPS_PER_EPISODE = 8
RUN_WORDS = (6, 24)
"""A key's state is made of runs of this many consecutive words of the source."""
PRODUCTIVE_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class SourceText:
    """What keys are recombined from.

    Attributes:
        name: Where it comes from, for the report.
        tasks: One text per task.
        actions: One text per action.
        words: All words of all outcomes, in order.
    """

    name: str
    tasks: tuple[str, ...]
    actions: tuple[str, ...]
    words: tuple[str, ...]


def shared_logs() -> Path | None:
    """The folder of the recorded InterCode runs, or None where it is missing."""
    root = os.environ.get("CEB_SHARED") or Path(__file__).resolve().parents[1] / ".." / "shared"
    folder = Path(root) / "data" / "intercode" / "logs"
    return folder if folder.is_dir() else None


def load_source() -> SourceText:
    """The text of the real logs, or of the stand-in where they are missing."""
    folder = shared_logs()
    if folder is None:
        return _stand_in()
    tasks: list[str] = []
    actions: list[str] = []
    words: list[str] = []
    for path in sorted(folder.glob("*/*multiturn*.json")):
        for episode in json.loads(path.read_text(encoding="utf-8")).values():
            turns = episode["turn_history"]
            tasks.append(str(episode["query"]))
            actions.extend(str(action) for action in turns["actions"])
            for outcome in turns["observations"]:
                words.extend(words_of(str(outcome)[:4000]))
    return SourceText("real InterCode logs", tuple(tasks), tuple(actions), tuple(words))


def _stand_in() -> SourceText:
    """Invented words with Zipf-like frequencies, where the real logs are not at hand."""
    rng = random.Random(7)
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in "aeiou"]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(20_000)]
    weights = [1.0 / (rank + 3) for rank in range(len(lexicon))]
    words = rng.choices(lexicon, weights, k=400_000)
    tasks = tuple(" ".join(words[i : i + 18]) for i in range(0, 18 * 500, 18))
    actions = tuple(" ".join(words[i : i + 5]) for i in range(9_000, 9_000 + 5 * 3_000, 5))
    return SourceText("invented stand-in text (the real logs were not found)", tasks, actions, tuple(words))


def records(source: SourceText, num_records: int, words_per_key: int, seed: int = 0) -> Iterator[Record]:
    """Records in episodes of 8 steps: one task an episode, each key exactly `words_per_key` words long.

    Args:
        source: What to recombine.
        num_records: How many.
        words_per_key: Words (tokens of the analyzer) in `retrieval_key(task, state, action)`.
        seed: Same seed, same records.
    """
    rng = random.Random(f"{seed}/{words_per_key}")
    task = ""
    for number in range(num_records):
        episode, step = divmod(number, STEPS_PER_EPISODE)
        if step == 0:
            task = " ".join(words_of(rng.choice(source.tasks))[: words_per_key // 3])
        action = " ".join(words_of(rng.choice(source.actions))[: words_per_key // 4])
        taken = len(words_of(retrieval_key(task, "", action)))
        state = _recombined(source.words, words_per_key - taken, rng)
        yield _record(f"bench-{seed}-{episode}", step, task, state, action, rng.random() < PRODUCTIVE_SHARE)


def _recombined(words: tuple[str, ...], num_words: int, rng: random.Random) -> str:
    taken: list[str] = []
    while len(taken) < num_words:
        start = rng.randrange(len(words) - RUN_WORDS[1])
        taken.extend(words[start : start + min(rng.randint(*RUN_WORDS), num_words - len(taken))])
    return " ".join(taken)


def _record(episode_id: str, step: int, task: str, state: str, action: str, label: bool) -> Record:
    return Record(
        record_id=f"{episode_id}:{step}:1",
        scope="bench",
        episode_id=episode_id,
        step_index=step,
        task=task,
        state=state,
        action=action,
        outcome="",
        label=label,
        vote_share=float(label),
        votes=1,
        confidence=None,
        agrees=None,
        repeated=False,
        critic="",
        labeler="bench",
        created_at=0.0,
    )
