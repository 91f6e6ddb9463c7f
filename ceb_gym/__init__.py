"""Gymnasium wrappers that attach a Critic Experience Bank confidence to every step (arXiv 2607.12397)."""

from ceb_gym.errors import CebError
from ceb_gym.evaluation.rollout import rollout
from ceb_gym.types import (
    Assessment,
    Decision,
    HistoryItem,
    Precedent,
    Precedents,
    Query,
    Record,
    Step,
    StepLabel,
    Trajectory,
    Verdict,
)
from ceb_gym.wrapper import ConfidenceWrapper

__version__ = "0.1.0"

__all__ = [
    "Assessment",
    "CebError",
    "ConfidenceWrapper",
    "Decision",
    "HistoryItem",
    "Precedent",
    "Precedents",
    "Query",
    "Record",
    "Step",
    "StepLabel",
    "Trajectory",
    "Verdict",
    "__version__",
    "rollout",
]
