"""Turning labels into the next revision of a scope: the last transaction of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from ceb_gym.bank import commits
from ceb_gym.bank.rows import Row, checked_number, features_from_text, record_to_row, vote_to_row
from ceb_gym.bank.schema import LABELING, STEP, TRAJECTORY, VOTE
from ceb_gym.errors import BankError
from ceb_gym.types import Claim, Record, StepLabel

_T = TRAJECTORY.c
_CLAIMED = (
    select(TRAJECTORY)
    .where(
        _T.episode_id == bindparam("episode"),
        _T.segment == bindparam("number"),
        _T.claim_token == bindparam("token"),
    )
    .with_for_update()
)
_EXECUTED = (
    select(STEP)
    .where(STEP.c.trajectory_id == bindparam("of_trajectory"), STEP.c.executed)
    .order_by(STEP.c.step_index)
)
_LAST_NUMBER = select(func.max(LABELING.c.number)).where(
    LABELING.c.trajectory_id == bindparam("of_trajectory")
)
_INSERT_LABELING = LABELING.insert().returning(LABELING.c.labeling_id)
_INSERT_VOTES = VOTE.insert()
_FINISH = (
    update(TRAJECTORY)
    .where(_T.trajectory_id == bindparam("of_trajectory"))
    .values(status="labelled", claim_token=None, claim_until=None)
)


def commit(
    connection: Connection, claim: Claim, labels: Sequence[StepLabel], labeler: str, now: float
) -> int | None:
    """Stores labels, votes and records, and marks the trajectory labelled; None if the claim is lost.

    Records of an earlier labeling of the same steps are removed in the same revision. Where nothing is
    added or removed there is no new revision, and the newest one is returned.
    """
    of_claim = {"episode": claim.key.episode_id, "number": claim.key.segment, "token": claim.token}
    head = connection.execute(_CLAIMED, of_claim).one_or_none()
    if head is None:
        return None
    own = _labels_by_step(labels, head.first_step, head.last_step)
    span = (head.episode_id, head.first_step, head.last_step)
    previous = connection.execute(_LAST_NUMBER, {"of_trajectory": head.trajectory_id}).scalar() or 0
    number = 1 + max(previous, commits.last_labeling(connection, *span))
    removed = commits.alive_ids(connection, head.scope, *span) if number > 1 else []
    steps = connection.execute(_EXECUTED, {"of_trajectory": head.trajectory_id}).all()
    records = [
        _record_row(head, step, label, labeler, number)
        for step in steps
        if (label := own.get(step.step_index)) is not None and label.label is not None
    ]
    _store_labeling(connection, head.trajectory_id, number, own, labeler, now)
    connection.execute(_FINISH, {"of_trajectory": head.trajectory_id})
    if not records and not removed:
        return commits.current_revision(connection, head.scope)
    kind = "relabel" if removed else "labels"
    return commits.write_revision(
        connection, head.scope, kind=kind, now=now, added=records, removed_ids=removed
    )


def _labels_by_step(labels: Sequence[StepLabel], first: int, last: int) -> dict[int, StepLabel]:
    own: dict[int, StepLabel] = {}
    for label in labels:
        if label.index in own:
            raise BankError(f"Step {label.index} was given two labels; a labeler gives each step one.")
        if label.vote_share is not None:
            what = f"The vote share of step {label.index}"
            checked_number(label.vote_share, what, unit_interval=True)
        if first <= label.index <= last:
            own[label.index] = label
    return own


def _record_row(head: Any, step: Any, label: StepLabel, labeler: str, number: int) -> Row:
    positive = bool(label.label)
    share = float(positive) if label.vote_share is None else label.vote_share
    record = Record(
        record_id=f"{head.episode_id}:{step.step_index}:{number}",
        scope=head.scope,
        episode_id=head.episode_id,
        step_index=step.step_index,
        task=head.task,
        state=step.state,
        action=step.action,
        outcome=step.outcome or "",
        label=positive,
        vote_share=share,
        votes=sum(vote.label is not None for vote in label.votes),
        confidence=step.confidence,
        agrees=None if step.confidence is None else (step.confidence >= 0.5) == positive,
        repeated=step.repeated,
        critic=step.critic,
        labeler=labeler,
        created_at=head.created_at,
        features=features_from_text(step.features),
    )
    return record_to_row(record)


def _store_labeling(
    connection: Connection,
    trajectory_id: int,
    number: int,
    own: dict[int, StepLabel],
    labeler: str,
    now: float,
) -> None:
    row = {"trajectory_id": trajectory_id, "number": number, "labeler": labeler, "created_at": now}
    labeling_id = connection.execute(_INSERT_LABELING, row).scalar_one()
    votes = [
        {"labeling_id": labeling_id, **vote_to_row(vote, index, position)}
        for index, label in own.items()
        for position, vote in enumerate(label.votes)
    ]
    if votes:
        connection.execute(_INSERT_VOTES, votes)
