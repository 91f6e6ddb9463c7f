"""Baselines that look at how the agent came to its action: its tokens, its samples, or what it stated.

All read `Query.trace`, which an agent attaches to its action (`TracedAction`). Without a trace that holds
what is needed, a step stays unscored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

from ceb_gym.types import AgentTrace, Precedents, Query, TokenLogprob, Verdict

_LARGEST_MASS = 1.0
_FEWEST_SAMPLES = 2


class TraceCritic:
    """A critic that reads nothing but the agent's trace."""

    name = ""
    k = 0

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns one verdict per query; unscored with the reason where the trace lacks something."""
        return [self._verdict(query) for query in queries]

    def _verdict(self, query: Query) -> Verdict:
        if query.trace is None:
            return Verdict(None, "unscored: the agent attached no trace to its action", self.name)
        score, rationale = self._score(query.trace, query.action)
        return Verdict(score, rationale if score is not None else f"unscored: {rationale}", self.name)

    def _score(self, trace: AgentTrace, action: str) -> tuple[float | None, str]:
        raise NotImplementedError


class PplCritic(TraceCritic):
    """s = 1 / perplexity = exp(mean log probability of the tokens of the action span).

    Tokens that end the sequence do not count. A token without a finite log probability leaves the step
    unscored: leaving it out would raise the score of exactly the tokens that are least probable.

    Source: arXiv 2607.12397, PPL.
    """

    name = "ppl"

    def _score(self, trace: AgentTrace, action: str) -> tuple[float | None, str]:
        tokens = _written(trace.tokens)
        if not tokens:
            return None, "the trace has no tokens of the action"
        logprobs = [token.logprob for token in tokens if _usable(token.logprob)]
        if len(logprobs) < len(tokens):
            return (
                None,
                f"{len(tokens) - len(logprobs)} of {len(tokens)} tokens have no usable log probability",
            )
        mean = math.fsum(logprobs) / len(logprobs)
        score = math.exp(min(mean, 0.0))  # servers round a certain token to a little above 0
        perplexity = f"{1 / score:.3g}" if score > 0 else "beyond all numbers"
        return score, f"perplexity {perplexity} over {len(tokens)} tokens"


class MeanEntropyCritic(TraceCritic):
    """s = exp(-mean token entropy) over the action span, entropies in nats.

    Of each token only the most probable alternatives are known: H = -sum p ln p over them, with what is left
    of the probability as one further bucket, so that H is a lower bound. The token that was written counts
    where it is none of the alternatives. Tokens without alternatives leave the step unscored.

    Source: arXiv 2607.12397, mean entropy.
    """

    name = "mean_entropy"

    def _score(self, trace: AgentTrace, action: str) -> tuple[float | None, str]:
        tokens = _written(trace.tokens)
        if not tokens:
            return None, "the trace has no tokens of the action"
        entropies = [entropy for token in tokens if (entropy := token_entropy(token)) is not None]
        if len(entropies) < len(tokens):
            return None, f"{len(tokens) - len(entropies)} of {len(tokens)} tokens have no alternatives"
        mean = math.fsum(entropies) / len(entropies)
        return math.exp(-mean), f"mean entropy {mean:.3g} nats over {len(tokens)} tokens"


class ProCritic(TraceCritic):
    """s = probability mass of the chosen action among the sampled ones.

    The agent samples N actions. Samples of the same action are merged by adding their sequence
    probabilities, and s = exp(l_a) / sum_b exp(l_b), with l the log probability of an action's samples. N
    times the same action gives 1. A single sample says nothing and leaves the step unscored. The chosen
    action must be among the samples; samples without an action are not counted.

    Scored on the action that the agent itself chose, so that it is not paired with critics that judge
    other actions.

    Source: Nguyen et al. (2025), PRO; N = 5 in arXiv 2607.12397.
    """

    name = "pro"

    def _score(self, trace: AgentTrace, action: str) -> tuple[float | None, str]:
        if len(trace.samples) < _FEWEST_SAMPLES:
            return None, f"the trace has {len(trace.samples)} usable samples: let the agent take samples=5"
        if not all(math.isfinite(sample.logprob) for sample in trace.samples):
            return None, "a sample has no finite log probability"
        largest = max(sample.logprob for sample in trace.samples)
        masses: dict[str, float] = {}
        for sample in trace.samples:
            mass = math.exp(sample.logprob - largest)
            masses[sample.action] = masses.get(sample.action, 0.0) + mass
        if action not in masses:
            return None, "the chosen action is none of the samples"
        share = masses[action] / math.fsum(masses.values())
        return min(share, 1.0), f"{share:.3g} of the mass of {len(trace.samples)} samples"


class VerbalizedCritic(TraceCritic):
    """s = the confidence that the agent stated together with its action, in one pass.

    Scored on the agent's own action, so that it is not paired with critics that judge other actions.

    Source: arXiv 2607.12397, verbalized.
    """

    name = "verbalized"

    def _score(self, trace: AgentTrace, action: str) -> tuple[float | None, str]:
        stated = trace.stated_confidence
        if stated is None or not 0 <= stated <= 1:
            return None, f"the agent stated {'no confidence' if stated is None else stated}"
        return stated, f"the agent stated {stated:g}"


def token_entropy(token: TokenLogprob) -> float | None:
    """Entropy in nats of the alternatives of one token, with the rest of the mass as one bucket.

    None where there are no alternatives, or none with a probability: one bucket of everything would look
    like certainty.
    """
    masses = [math.exp(min(logprob, 0.0)) for _, logprob in token.top if _usable(logprob)]
    if math.fsum(masses) <= 0:
        return None
    if _usable(token.logprob) and token.token not in {text for text, _ in token.top}:
        masses.append(math.exp(min(token.logprob, 0.0)))
    total = math.fsum(masses)
    if total > _LARGEST_MASS:  # rounding of the server
        masses = [mass / total for mass in masses]
    else:
        masses.append(_LARGEST_MASS - total)
    return max(0.0, -math.fsum(mass * math.log(mass) for mass in masses if mass > 0))


def _usable(logprob: float | None) -> TypeGuard[float]:
    return logprob is not None and math.isfinite(logprob)


def _written(tokens: Sequence[TokenLogprob]) -> list[TokenLogprob]:
    return [token for token in tokens if not token.is_end]
