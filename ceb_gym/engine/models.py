"""Learned critics by revision: each lane is judged by what the bank held at its own pin."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ceb_gym.errors import CebError, CriticError, RevisionGoneError
from ceb_gym.protocols import Bank, Critic, LearningCritic
from ceb_gym.types import Pin, Record

_KEPT_MODELS = 16
_DENSE_REVISIONS = 16
_DENSE_REVISIONS_BESIDE_MORE = 4


def spaced_revision(revision: int, of_others: int = 0) -> int:
    """The newest revision, not after the given one, at which a critic is fitted anew from all records.

    Up to 16 every revision is; later ones lie so that each doubling has 16 of them, which keeps the total
    cost of all fits linear in the number of records. While other scopes hold more, each fit costs much and
    says little new: then 4 instead of 16.

    Args:
        revision: Of the own scope.
        of_others: Revisions of other scopes that are read too.
    """
    dense = _DENSE_REVISIONS if revision >= of_others else _DENSE_REVISIONS_BESIDE_MORE
    if revision <= dense:
        return revision
    return revision - revision % (1 << (revision.bit_length() - dense.bit_length()))


class ModelStore:
    """Fits a learning critic at pins and keeps the newest fitted ones.

    Not safe for concurrent use: the engine locks.
    """

    def __init__(self, bank: Bank, critic: LearningCritic) -> None:
        self._bank = bank
        self._critic = critic
        self._fitted: OrderedDict[tuple[Pin, ...], Critic] = OrderedDict()

    def at(self, pins: tuple[Pin, ...]) -> Critic:
        """Returns the critic that has learned what the scopes held at the pins."""
        if not self._critic.incremental:
            own, *others = pins
            of_others = sum(pin.revision for pin in others)
            pins = (
                Pin(own.scope, spaced_revision(own.revision, of_others)),
                *(Pin(pin.scope, spaced_revision(pin.revision)) for pin in others),
            )
        fitted = self._fitted.get(pins)
        if fitted is None:
            fitted = self._fit(pins)
            self._fitted[pins] = fitted
            while len(self._fitted) > _KEPT_MODELS:
                self._fitted.popitem(last=False)
        self._fitted.move_to_end(pins)
        return fitted

    def _fit(self, pins: tuple[Pin, ...]) -> Critic:
        if self._critic.incremental and (earlier := self._newest_before(pins)) is not None:
            added = self._added_since(earlier, pins)
            if added is not None:
                return self._learn(added, self._fitted[earlier])
        records: list[Record] = []
        for pin in reversed(pins):  # the own scope's records come last: they are the most telling
            if pin.revision > 0:
                records.extend(self._bank.records(pin.scope, until=pin.revision))
        return self._learn(records, None)

    def _learn(self, records: Sequence[Record], previous: Critic | None) -> Critic:
        name = self._critic.name
        try:
            fitted = self._critic.fit(records) if previous is None else self._critic.fit(records, previous)
        except CebError:
            raise
        except Exception as error:  # a critic is foreign code: its failure is handled as the user chose
            raise CriticError(
                f"Critic {name} raised {type(error).__name__} when it learned from {len(records)} records: "
                f"{error}"
            ) from error
        if not isinstance(fitted, Critic):
            raise CriticError(f"Critic {name} returned {fitted!r} from `fit`, which is no critic.")
        return fitted

    def _newest_before(self, pins: tuple[Pin, ...]) -> tuple[Pin, ...] | None:
        scopes = [pin.scope for pin in pins]
        earlier = [
            candidate
            for candidate in self._fitted
            if [pin.scope for pin in candidate] == scopes
            and all(a.revision <= b.revision for a, b in zip(candidate, pins, strict=True))
        ]
        return max(earlier, key=lambda candidate: sum(pin.revision for pin in candidate), default=None)

    def _added_since(self, earlier: tuple[Pin, ...], pins: tuple[Pin, ...]) -> list[Record] | None:
        """The records added between the pins, or None where some were removed: then sums start anew."""
        added: list[Record] = []
        for before, now in reversed(list(zip(earlier, pins, strict=True))):
            if before.revision == now.revision:
                continue
            try:
                changes = self._bank.changes(now.scope, before.revision, now.revision)
            except RevisionGoneError:
                return None
            if changes.removed:
                return None
            added.extend(changes.added)
        return added
