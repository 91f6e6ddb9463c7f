"""What the wrappers of one process share when they are configured alike: bank, index, critic, labeler."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from ceb_gym.engine.judging import Judge, Judgement
from ceb_gym.engine.learning import Learner
from ceb_gym.protocols import Bank, Retriever
from ceb_gym.types import Pin, Query


class Engine:
    """Judges queries and learns from episodes, for any number of lanes.

    Args:
        bank: Open bank.
        retriever: Over that bank.
        judge: Holds the critic.
        learner: Stores and labels.
        read_only: Whether nothing may be written.
        run_id: First part of all episode ids; None asks the bank for one never given before.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        bank: Bank,
        retriever: Retriever,
        judge: Judge,
        learner: Learner,
        *,
        read_only: bool,
        run_id: str | None,
        clock: Callable[[], float],
    ) -> None:
        self.bank = bank
        self.learner = learner
        self.read_only = read_only
        self.clock = clock
        self.pid = os.getpid()
        self._retriever = retriever
        self._judge = judge
        self._lock = threading.Lock()
        self._lanes = 0
        self.run_id = run_id or ("read" if read_only else bank.new_run())

    @property
    def critic_name(self) -> str:
        """The name of the critic that judges."""
        return self._judge.critic.name

    def new_lane(self) -> int:
        """Returns the number of one more lane of this run."""
        with self._lock:
            self._lanes += 1
            return self._lanes - 1

    def pin(self, scopes: Sequence[str], as_of: int | None = None) -> tuple[Pin, ...]:
        """Pins scopes to their newest revisions; the first, the own one, to `as_of` where that is older."""
        pins = [Pin(scope, self.bank.revision(scope)) for scope in scopes]
        if as_of is not None:
            pins[0] = Pin(pins[0].scope, min(as_of, pins[0].revision))
        return tuple(pins)

    def judge(self, queries: Sequence[Query], pins: Sequence[tuple[Pin, ...]]) -> list[Judgement]:
        """Returns verdict and precedents for each query at its own pins."""
        return self._judge.judge(queries, pins)

    def close(self) -> None:
        """Commits what is pending, saves the index, closes the bank."""
        try:
            self.learner.close()
            if not self.read_only:
                self._retriever.save()
        finally:
            self.bank.close()
