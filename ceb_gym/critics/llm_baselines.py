"""The paper's baselines that ask a language model about a proposed action, without a bank."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ceb_gym.chat.reading import ScoreRange
from ceb_gym.chat.values import Chat, ChatReply, ChatRequest
from ceb_gym.critics.llm import REASONING_SCHEMA, CebCritic, ChatCritic, check_whole
from ceb_gym.critics.llm_replies import prompt_usage, score_verdict, unscored
from ceb_gym.critics.prompts import REASONING_REPLY, TRUE_OR_FALSE, CriticPrompt, PromptStyle
from ceb_gym.types import TokenLogprob, Verdict

P_TRUE = "p_true"
P_TRUE_MASS = "p_true_mass"
_TRUE = frozenset({"true", "yes"})
_FALSE = frozenset({"false", "no"})
_AROUND = " \t\r\n\"'`*.,:;!()[]{}\u2581\u0120\u010a"
"""What tokens may carry around a word; the last three stand for spaces and newlines in some vocabularies."""


class StaticCritic(CebCritic):
    """The paper's critic without a bank: the same prompt and reply, no precedents.

    Source: "static" in arXiv 2607.12397; what precedents are worth is measured against it.
    """

    def __init__(
        self,
        chat: Chat,
        score_range: ScoreRange = "auto",
        max_prompt_tokens: int = 6_000,
        history_steps: int = 16,
        use_repetition_flag: bool = True,
        max_tokens: int = 400,
    ) -> None:
        super().__init__(
            chat, 0, score_range, max_prompt_tokens, history_steps, use_repetition_flag, max_tokens
        )
        self.name = f"static:{chat.model}"


class CotCritic(ChatCritic):
    """Reasoning first, then a confidence from 0 to 100, without examples: z = clip(score / 100, 0, 1).

    The score is always divided by 100, so 0.9 is 0.009: what a model means by it is not guessed. Outside of
    [0, 100] it is clipped and flagged as `read_score` says. No repetition flag, which is a part of CEB.

    Args:
        chat: The language model.
        max_prompt_tokens: Budget of a prompt, by estimate, at least 1,000.
        history_steps: Most earlier steps shown: at least 8, or 0 for none.
        max_tokens: Of a reply, reasoning included.

    Source: Yu et al. (2025), the inductive variant, as used for "CoT" in arXiv 2607.12397.
    """

    def __init__(
        self,
        chat: Chat,
        max_prompt_tokens: int = 6_000,
        history_steps: int = 16,
        max_tokens: int = 800,
    ) -> None:
        style = PromptStyle(
            REASONING_REPLY, 0, False, max_tokens=max_prompt_tokens, history_steps=history_steps
        )
        super().__init__(f"cot:{getattr(chat, 'model', '?')}", chat, style, max_tokens)

    def _request(self, prompt: CriticPrompt) -> ChatRequest:
        return ChatRequest(prompt.messages, max_tokens=self._max_tokens, json_schema=REASONING_SCHEMA)

    def _read(self, reply: ChatReply, prompt: CriticPrompt) -> Verdict:
        return score_verdict(reply, prompt, source=self.name, score_range="percent", words="reasoning")


class PTrueCritic(ChatCritic):
    """P(True): how probable the model finds the word True as its answer to "is the action correct?".

    z = m(True) / (m(True) + m(False)), where m sums the probabilities of all variants of a word (`True`,
    ` true`, `Yes`; `False`, `no`) among the most probable tokens in the place of the first word answered.
    Leading whitespace is passed over. Where neither word is among them, or the endpoint gives no log
    probabilities, the query is unscored. Both m(True) (`p_true_mass`, the score in its raw form) and z
    (`p_true`) are stored with the step.

    Args:
        chat: The language model; its endpoint must give log probabilities.
        max_prompt_tokens: Budget of a prompt, by estimate, at least 1,000.
        history_steps: Most earlier steps shown: at least 8, or 0 for none.
        top_logprobs: How many of the most probable tokens are looked at.
        max_tokens: Of a reply: the word, and what a model may write before it.

    Source: Kadavath et al. (2022), arXiv 2207.05221; "P(True)" in arXiv 2607.12397.
    """

    def __init__(
        self,
        chat: Chat,
        max_prompt_tokens: int = 6_000,
        history_steps: int = 16,
        top_logprobs: int = 20,
        max_tokens: int = 4,
    ) -> None:
        style = PromptStyle(
            TRUE_OR_FALSE, 0, False, max_tokens=max_prompt_tokens, history_steps=history_steps
        )
        super().__init__(f"p_true:{getattr(chat, 'model', '?')}", chat, style, max_tokens)
        check_whole("top_logprobs", top_logprobs, 2)
        self._top_logprobs = top_logprobs

    def _request(self, prompt: CriticPrompt) -> ChatRequest:
        return ChatRequest(prompt.messages, max_tokens=self._max_tokens, top_logprobs=self._top_logprobs)

    def _read(self, reply: ChatReply, prompt: CriticPrompt) -> Verdict:
        usage = prompt_usage(reply, prompt)
        choice = reply.choices[0]
        if choice.tokens is None:
            return unscored("the endpoint gave no log probabilities", self.name, usage, prompt.note)
        true, false = true_and_false_mass(choice.tokens)
        if true + false <= 0.0:
            why = f"neither True nor False is among the likely answers; the reply is {choice.text[:40]!r}"
            return unscored(why, self.name, usage, prompt.note)
        share = true / (true + false)
        features = {P_TRUE_MASS: true, P_TRUE: share}
        rationale = " ".join(filter(None, [f"P(True) {true:.4f}, P(False) {false:.4f}", prompt.note]))
        return Verdict(share, rationale, self.name, usage, features)


def true_and_false_mass(tokens: Sequence[TokenLogprob]) -> tuple[float, float]:
    """Probabilities of True and of False, variants merged, in the place of the first visible token.

    Returns:
        Each in [0, 1]; 0.0 for a word that is not among the most probable tokens.
    """
    place = next((one for one in tokens if not one.is_end and one.token.strip(_AROUND)), None)
    if place is None:
        return 0.0, 0.0
    logprobs = dict(place.top)
    if place.logprob is not None:
        logprobs.setdefault(place.token, place.logprob)
    masses = [
        math.fsum(
            math.exp(logprob) for token, logprob in logprobs.items() if token.strip(_AROUND).lower() in words
        )
        for words in (_TRUE, _FALSE)
    ]
    return min(masses[0], 1.0), min(masses[1], 1.0)
