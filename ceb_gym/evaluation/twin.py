"""The `precedent` critic without precedents: what the same critic is worth where it looks nothing up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ceb_gym.build.parts import CRITICS
from ceb_gym.build.specs import build_parsed, parse_spec
from ceb_gym.critics.precedent import PrecedentCritic
from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Critic
from ceb_gym.types import Precedents, Query, Record, Verdict

TWIN: Final = "precedent_without_precedents"
_CRITIC: Final = "precedent"
_PRECEDENTS: Final = "precedents"


class WithoutPrecedents:
    """Learns and judges as the given critic does, and has nothing looked up for it.

    Args:
        critic: Looks at no precedents, whatever it is given.
    """

    name = TWIN
    k = 0
    incremental = False

    def __init__(self, critic: PrecedentCritic) -> None:
        self._critic = critic

    def fit(self, records: Sequence[Record], previous: Critic | None = None) -> Critic:
        """Returns the critic that has learned from the records."""
        return self._critic.fit(records)

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns the critic's verdicts."""
        return self._critic.judge(queries, precedents)


def precedent_critic(spec: str) -> PrecedentCritic | None:
    """Builds the `precedent` critic that a spec names; None for other critics and for cascades."""
    return _built(spec, {}) if _names_it(spec) else None


def without_precedents(spec: str) -> WithoutPrecedents | None:
    """Builds the twin of the `precedent` critic that a spec names.

    Returns:
        None for other critics and cascades, and for a critic that is its own twin or that has no features but
        those about precedents.
    """
    if not _names_it(spec) or parse_spec("critic", spec).options.get(_PRECEDENTS) is False:
        return None
    _built(spec, {})  # whatever is wrong with the spec itself is said here
    try:
        return WithoutPrecedents(_built(spec, {_PRECEDENTS: False}))
    except ConfigurationError:  # all other features are left out, too
        return None


def _names_it(spec: str) -> bool:
    return " | " not in spec and parse_spec("critic", spec).name == _CRITIC


def _built(spec: str, options: dict[str, Any]) -> PrecedentCritic:
    parsed = parse_spec("critic", spec)
    changed = replace(parsed, options={**parsed.options, **options})
    built: PrecedentCritic = build_parsed("critic", spec, changed, CRITICS)
    return built
