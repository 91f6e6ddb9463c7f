"""Drift of a scope's labels: many majorities of one vote say that the labeler is no longer sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ceb_gym.types import Record

EPISODES: Final = 30
WARN_ABOVE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Drift:
    """How many labels of the newest episodes hung on one vote.

    Attributes:
        share: Of the voted records, in [0, 1].
        n_records: Voted records looked at.
        n_episodes: Episodes they are of.
    """

    share: float
    n_records: int
    n_episodes: int

    @property
    def is_high(self) -> bool:
        """Whether it is worth a warning."""
        return self.share > WARN_ABOVE


def one_vote_margins(records: Sequence[Record], episodes: int = EPISODES) -> Drift | None:
    """The share of records that one vote decided, among those with three valid votes or more.

    Args:
        records: Of one scope, in commit order.
        episodes: How many of the newest to look at.

    Returns:
        None where none of them was voted on.
    """
    newest = list(dict.fromkeys(record.episode_id for record in reversed(records)))[:episodes]
    kept = set(newest)
    voted = [record for record in records if record.episode_id in kept and record.votes >= 3]
    if not voted:
        return None
    close = sum(abs(2 * round(record.vote_share * record.votes) - record.votes) <= 1 for record in voted)
    return Drift(close / len(voted), len(voted), len({record.episode_id for record in voted}))
