"""Another critic's score as one more feature, such as a language model's for the `precedent` critic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ceb_gym.critics.checks import checked_verdicts
from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Critic, LearningCritic
from ceb_gym.types import Precedents, Query, Verdict

SCORE, SCORED = "scorer_score", "scorer_scored"
SCORE_FEATURES = (SCORE, SCORED)


def check_scorer(scorer: Critic) -> None:
    """Raises ConfigurationError for a critic whose scores change as it learns."""
    if isinstance(scorer, LearningCritic):
        raise ConfigurationError(
            f"The scorer {scorer.name} learns from the bank itself, so that its banked scores are those of "
            "many critics: give one that does not, such as openai:MODEL."
        )


def scores_of(
    scorer: Critic, queries: Sequence[Query], precedents: Sequence[Precedents]
) -> list[tuple[Mapping[str, float], Verdict]]:
    """The two features of each query, and the scorer's verdict they come from.

    Returns:
        `scorer_score`: in [0, 1], 0 where it is unscored. `scorer_scored`: whether there is a score.

    Raises:
        CriticError: As the scorer does.
    """
    shown = [
        Precedents(found.productive[: scorer.k], found.unproductive[: scorer.k], found.revision)
        for found in precedents
    ]
    verdicts = checked_verdicts(scorer, scorer.judge(queries, shown), len(queries))
    return [
        ({SCORE: verdict.confidence or 0.0, SCORED: float(verdict.confidence is not None)}, verdict)
        for verdict in verdicts
    ]
