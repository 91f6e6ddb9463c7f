"""From a finished episode to records: stored at once, labelled inline, in the background, or later."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from ceb_gym.errors import BankConflictError, BankError, LabelerError
from ceb_gym.protocols import Bank, HindsightLabeler
from ceb_gym.types import Claim, StepLabel, Trajectory, TrajectoryKey, TrajectoryStatus

LearnMode = Literal["inline", "background", "off"]
_MOST_NAMESAKES = 100
_SILENT_EPISODES = 5


def label_stored(bank: Bank, labeler: HindsightLabeler, key: TrajectoryKey) -> int | None:
    """Claims and labels one stored trajectory, and commits its records.

    Returns:
        The scope's new revision, or None where another process has the claim or has finished.

    Raises:
        LabelerError: If the labeler fails; the trajectory keeps waiting for labels.
    """
    claim = bank.claim(key)
    return None if claim is None else label_claimed(bank, labeler, claim)


def label_claimed(bank: Bank, labeler: HindsightLabeler, claim: Claim) -> int | None:
    """Labels a claimed trajectory and commits its records.

    The labeler runs outside any transaction, under the claim, so that two processes never label the same
    trajectory and a process that dies leaves it to the next.

    Returns:
        The scope's new revision, or None where the claim was lost meanwhile.

    Raises:
        LabelerError: If the labeler fails; the claim is given back and the trajectory keeps waiting.
        BankError: If the labels cannot be stored; likewise.
    """
    key = claim.key
    try:
        until = None if labeler.needs_ending else key.segment
        trajectory = bank.episode(key.episode_id, until_segment=until)
        past = (
            bank.past_rewards(trajectory.scope, labeler.past_episodes, before=key.episode_id)
            if labeler.past_episodes
            else []
        )
        labels = _checked_labels(labeler, trajectory, labeler.label(trajectory, past))
        return bank.commit_labels(claim, labels, labeler.name)
    except BaseException as error:
        with suppress(BankError):  # the first error says more, and a claim runs out by itself
            bank.release(claim)
        if isinstance(error, LabelerError | BankError) or not isinstance(error, Exception):
            raise
        raise LabelerError(f"Labeler {labeler.name} raised {type(error).__name__}: {error}") from error


def _checked_labels(
    labeler: HindsightLabeler, trajectory: Trajectory, labels: Sequence[StepLabel]
) -> list[StepLabel]:
    executed = {step.index: step for step in trajectory.steps if step.executed}
    seen: set[int] = set()
    checked = []
    for label in labels:
        if label.label not in (True, False, None):
            raise LabelerError(
                f"Labeler {labeler.name} gave step {label.index} the label {label.label!r}: "
                "give True, False or None."
            )
        if label.index not in executed or label.index in seen:
            raise LabelerError(
                f"Labeler {labeler.name} labelled step {label.index} of episode {trajectory.episode_id}, "
                "which was not executed or is labelled already: label each executed step once."
            )
        seen.add(label.index)
        # what a step without an outcome did is not known, whatever the labeler says about it
        known = executed[label.index].outcome is not None
        checked.append(label if known else replace(label, label=None, vote_share=None))
    return checked


class Learner:
    """Takes finished trajectories.

    Args:
        bank: Where they go.
        labeler: None keeps them pending until `ceb bank label`.
        mode: "inline" labels before `submit` returns, "background" on a thread that `flush` waits for.
    """

    def __init__(self, bank: Bank, labeler: HindsightLabeler | None, mode: LearnMode) -> None:
        self._bank = bank
        self._labeler = labeler
        self._mode = mode
        self._unsaved: list[tuple[Trajectory, TrajectoryStatus]] = []
        self._unlabelled: list[TrajectoryKey] = []
        self._renamed: dict[str, str] = {}
        self._failure: BaseException | None = None
        self._silent_episodes = 0
        self._queue: queue.Queue[TrajectoryKey | None] = queue.Queue()
        self._worker: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def needs_ending(self) -> bool:
        """Whether a segment has to wait for the end of its episode."""
        return self._labeler is not None and self._labeler.needs_ending

    def submit(self, trajectory: Trajectory, status: TrajectoryStatus) -> None:
        """Stores a trajectory and, when it is pending, has it labelled.

        The step that ended the episode must still reach the agent, so a bank that cannot be written now
        (disk full, locked) gives a warning; the trajectory stays in memory and is stored with the next.
        """
        if self._mode == "off":
            return
        with self._lock:
            self._unsaved.append((trajectory, status))
            try:
                self._store_unsaved()
            except BankError as error:
                warnings.warn(
                    f"{len(self._unsaved)} episode(s) wait in memory: they could not be stored. {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            keys, self._unlabelled = self._unlabelled, []
        for key in keys:
            if self._mode == "background":
                self._start_worker()
                self._queue.put(key)
            else:
                self._label(key)

    def flush(self) -> None:
        """Waits until all labels are committed.

        Raises:
            BankError: If an episode could not be stored.
            BaseException: What stopped a labeler in the background, other than its failure.
        """
        with self._lock:
            unsaved: BankError | None = None
            try:
                self._store_unsaved()
            except BankError as error:
                unsaved = error
            keys, self._unlabelled = self._unlabelled, []
        for key in keys:
            self._label(key)
        self._queue.join()
        failure, self._failure = self._failure or unsaved, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flushes and stops the background thread."""
        try:
            self.flush()
        finally:
            with self._lock:
                worker, self._worker = self._worker, None
            if worker is not None:
                self._queue.put(None)
                worker.join()

    def _store_unsaved(self) -> None:
        """Stores what waits and notes what is to be labelled.

        One that cannot be stored keeps waiting, with later segments of its episode, and holds up no other.

        Raises:
            BankError: The first failure, after all have been tried.
        """
        waiting, self._unsaved = self._unsaved, []
        failure: BankError | None = None
        for own, status in waiting:
            try:
                if any(own.episode_id == other.episode_id for other, _ in self._unsaved):
                    self._unsaved.append((own, status))
                    continue
                trajectory, conflict = self._store(own, status)
            except BankError as error:
                failure = failure or error
                self._unsaved.append((own, status))
                continue
            if self._labeler is not None and status == "pending":
                first = 0 if self.needs_ending else trajectory.segment
                self._unlabelled.extend(
                    TrajectoryKey(trajectory.episode_id, segment)
                    for segment in range(first, trajectory.segment + 1)
                )
            if conflict is not None:
                warnings.warn(
                    f"{conflict} The new episode is stored as {trajectory.episode_id}: give each run its own "
                    "run_id, or none.",
                    RuntimeWarning,
                    stacklevel=3,
                )
        if failure is not None:
            raise failure

    def _store(
        self, trajectory: Trajectory, status: TrajectoryStatus
    ) -> tuple[Trajectory, BankConflictError | None]:
        """Stores a trajectory, under another id where a given run id was used twice."""
        own_id = trajectory.episode_id
        trajectory = replace(trajectory, episode_id=self._renamed.get(own_id, own_id))
        conflict: BankConflictError | None = None
        for attempt in range(2, _MOST_NAMESAKES):
            try:
                self._bank.add_trajectory(trajectory, status=status)
                break
            except BankConflictError as error:
                conflict = conflict or error
                trajectory = replace(trajectory, episode_id=f"{own_id}~{attempt}")
        else:
            raise BankConflictError(
                f"Episode {own_id} is stored {_MOST_NAMESAKES} times under one run id: give each run its own."
            ) from conflict
        self._remember_name(own_id, trajectory)
        return trajectory, conflict

    def _remember_name(self, own_id: str, trajectory: Trajectory) -> None:
        """Keeps the later segments of a renamed episode together with the first."""
        if trajectory.ending != "segmented":
            self._renamed.pop(own_id, None)
        elif trajectory.episode_id != own_id:
            self._renamed[own_id] = trajectory.episode_id

    def _start_worker(self) -> None:
        with self._lock:
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="ceb-labeler", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        while True:
            key = self._queue.get()
            try:
                if key is None:
                    return
                self._label(key)
            except BaseException as error:  # a warning made an error, an exit: `flush` must not wait for ever
                self._failure = self._failure or error
            finally:
                self._queue.task_done()

    def _label(self, key: TrajectoryKey) -> None:
        if self._labeler is None:
            return
        try:
            if label_stored(self._bank, self._labeler, key) == 0:
                self._note_nothing_labelled()
        except (LabelerError, BankError) as error:
            warnings.warn(
                f"Episode {key.episode_id} is stored but not labelled: {str(error).rstrip('.')}. "
                "It waits for `ceb bank label`.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _note_nothing_labelled(self) -> None:
        """Says once that the bank stays empty, where the labeler has said nothing of several episodes."""
        self._silent_episodes += 1
        if self._silent_episodes == _SILENT_EPISODES and self._labeler is not None:
            warnings.warn(
                f"{self._labeler.name} gave no label in {_SILENT_EPISODES} episodes: the bank stays empty. "
                "Was every action deferred? Does it fit this environment? "
                '"success" needs info["success"] at the end, or "success?reward_above=X".',
                RuntimeWarning,
                stacklevel=3,
            )
