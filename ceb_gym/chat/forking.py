"""What a forked child must make anew: locks that another thread held at the fork, and connections."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Something whose locks and connections do not outlive a fork."""

    def renew(self) -> None:
        """Makes locks and connections anew; what belongs to the parent is dropped, never closed."""
        ...


_living: WeakSet[Renewable] = WeakSet()


def renew_after_fork(owner: Renewable) -> None:
    """Has `owner.renew` called in every forked child, as long as the owner lives."""
    _living.add(owner)


def _renew_all() -> None:
    for owner in list(_living):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
