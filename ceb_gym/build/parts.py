"""Builds each exchangeable part from a string or takes the object that is given."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

from ceb_gym.bank.store import SqlBank
from ceb_gym.build.specs import (
    OBJECT,
    build_named,
    build_parsed,
    check_members,
    construct,
    load,
    parse_spec,
)
from ceb_gym.chat.options import CHAT_OPTIONS, make_chat, split_chat_options
from ceb_gym.critics.agent_baselines import MeanEntropyCritic, PplCritic, ProCritic, VerbalizedCritic
from ceb_gym.critics.cascade import Alternative, cascade
from ceb_gym.critics.llm import CebCritic, ChatCritic
from ceb_gym.critics.llm_baselines import CotCritic, PTrueCritic, StaticCritic
from ceb_gym.critics.precedent import PrecedentCritic
from ceb_gym.critics.rules import RulesCritic
from ceb_gym.critics.simple import BaseRateCritic, ConstantCritic, CountsCritic, NeighborsCritic
from ceb_gym.errors import ConfigurationError
from ceb_gym.hindsight.rules import CallableLabeler, ReturnLabeler, RewardLevelLabeler, SuccessLabeler
from ceb_gym.hindsight.votes import VoteLabeler
from ceb_gym.policies.simple import (
    DeferBelow,
    DeferLowest,
    Governor,
    NeverDefer,
    PolicyChain,
    ReviewBudget,
)
from ceb_gym.protocols import Bank, Critic, HindsightLabeler, Policy, Retriever, Summarizer
from ceb_gym.retrieval.simple import RandomRetriever, RecentRetriever
from ceb_gym.retrieval.views import TfidfRetriever
from ceb_gym.reviewers.timed import TimedReviewer
from ceb_gym.summaries.generic import GenericSummarizer

Known = Mapping[str, tuple[Any, str | None]]


def _rules_critic(
    kind: str = "auto",
    risky: float = 0.05,
    other: float | str | None = "unscored",
    extra: str | None = None,
    built_in: bool = True,
) -> RulesCritic:
    """The `rules` critic; `extra` imports further rules from `package.module:name`."""
    rules = () if extra is None else load("extra rules of the critic", str(extra))
    return RulesCritic(kind, risky, other, rules, built_in)


def _precedent_critic(
    k: int = 5, precedents: bool | str = "auto", without: str = "", scorer: str | None = None
) -> PrecedentCritic:
    """The `precedent` critic; `scorer` is the spec of another one, percent-encoded where it has options."""
    return PrecedentCritic(k, precedents, without, None if scorer is None else make_critic(scorer))


def _by_model(name: str, critic: type[ChatCritic]) -> Callable[..., Critic]:
    """Factory of `name:MODEL`, of which some options are the endpoint's and the others the critic's."""

    def build(model: str, **options: Any) -> Critic:
        of_chat, others = split_chat_options(options)
        shown = f"{name}:{model}"
        chat = construct("critic", shown, make_chat, {"model": str(model), **of_chat})
        built = construct("critic", shown, critic, others, {"chat": chat}, tuple(sorted(CHAT_OPTIONS)))
        return cast(Critic, built)

    return build


CRITICS: Known = {
    "base_rate": (BaseRateCritic, None),
    "constant": (ConstantCritic, "confidence"),
    "counts": (CountsCritic, None),
    "neighbors": (NeighborsCritic, None),
    "rules": (_rules_critic, "kind"),
    "precedent": (_precedent_critic, None),
    "openai": (_by_model("openai", CebCritic), "model"),
    "static": (_by_model("static", StaticCritic), "model"),
    "cot": (_by_model("cot", CotCritic), "model"),
    "p_true": (_by_model("p_true", PTrueCritic), "model"),
    "ppl": (PplCritic, None),
    "mean_entropy": (MeanEntropyCritic, None),
    "pro": (ProCritic, None),
    "verbalized": (VerbalizedCritic, None),
}


def _vote_labeler(model: str, **options: Any) -> HindsightLabeler:
    """Factory of `openai:MODEL`, of which some options are the endpoint's and the others the labeler's."""
    of_chat, others = split_chat_options(options)
    shown = f"openai:{model}"
    chat = construct("labeler", shown, make_chat, {"model": str(model), **of_chat})
    built = construct("labeler", shown, VoteLabeler, others, {"chat": chat}, tuple(sorted(CHAT_OPTIONS)))
    return cast(HindsightLabeler, built)


def own_labeler(critic: Any) -> str | None:
    """The labeler of a critic that has one: `openai:MODEL` labels with its own model and endpoint."""
    if not isinstance(critic, str) or critic == OBJECT:
        return None
    spec = parse_spec("critic", critic.split(" | ")[0])
    if spec.name != "openai" or spec.argument is None:
        return None
    of_chat, _ = split_chat_options(spec.options)
    return f"openai:{spec.argument}" + (f"?{urlencode(of_chat)}" if of_chat else "")


RULE_LABELERS: Known = {
    "reward_level": (RewardLevelLabeler, None),
    "return": (ReturnLabeler, "gamma"),
    "success": (SuccessLabeler, None),
    "none": (lambda: None, None),
}
LABELERS: Known = {**RULE_LABELERS, "openai": (_vote_labeler, "model")}
POLICIES: Known = {
    "never": (NeverDefer, None),
    "defer_below": (DeferBelow, "threshold"),
    "defer_lowest": (DeferLowest, "share"),
    "review_budget": (ReviewBudget, "budget"),
}
CASCADE_OPTIONS = ("until", "route")
SWITCHES = ("explore", "enforce", "min_revision")
RETRIEVERS: Known = {
    "tfidf": (TfidfRetriever, None),
    "random": (RandomRetriever, None),
    "recent": (RecentRetriever, None),
}
SUMMARIZERS: Known = {"generic": (GenericSummarizer, None)}


def make_critic(critic: Any) -> Critic:
    """Builds a critic from a spec, a cascade where ` | ` joins several, or returns the given one."""
    if isinstance(critic, str):
        if " | " in critic:
            return _named_cascade(critic)
        critic, _ = build_named("critic", critic, CRITICS)
    check_members("critic", critic, Critic)
    if isinstance(critic.k, bool) or not isinstance(critic.k, int) or critic.k < 0:
        raise ConfigurationError(
            f"The critic {critic.name} wants k={critic.k!r}: give a whole number from 0."
        )
    return cast(Critic, critic)


def _named_cascade(text: str) -> Critic:
    """`A | B?until=30&route=risk`: these two options belong to an alternative, all others to its critic."""
    first, *others = text.split(" | ")
    misplaced = [key for key in CASCADE_OPTIONS if key in parse_spec("critic", first).options]
    if misplaced:
        raise ConfigurationError(
            f"The critic {text!r} gives {misplaced[0]} to its first critic: it says when an alternative to "
            "the right of ` | ` comes first."
        )
    alternatives = []
    for other in others:
        spec = parse_spec("critic", other)
        options = dict(spec.options)
        when = {key: options.pop(key) for key in CASCADE_OPTIONS if key in options}
        built = build_parsed("critic", other, replace(spec, options=options), CRITICS, CASCADE_OPTIONS)
        alternatives.append(Alternative(make_critic(built), **when))
    return cascade(make_critic(first), *alternatives)


def make_labeler(labeler: Any) -> HindsightLabeler | None:
    """Builds a labeler; None for "none": trajectories are kept and wait for `ceb bank label`."""
    if labeler is None:
        raise ConfigurationError(
            "A bank that learns needs a labeler, and which is right is never guessed: pass "
            'labeler="return:0.99" (Gymnasium rewards), "success" (info["success"] at the end), '
            '"reward_level" (the reward is a level, as in InterCode), a callable, "none" (label later), '
            'or learn="off".'
        )
    if isinstance(labeler, str):
        labeler = _named_labeler(labeler)
        if labeler is None:
            return None
    if isinstance(labeler, type):
        check_members("labeler", labeler, HindsightLabeler)
    if not isinstance(labeler, HindsightLabeler):
        if not callable(labeler):
            raise ConfigurationError(f"The labeler {labeler!r} is neither a spec, a labeler nor callable.")
        return CallableLabeler(labeler)
    return labeler


def _named_labeler(text: str) -> Any:
    """A labeler by name, or `module:name` of a class, of a labeler, or of a labelling function."""
    spec = parse_spec("labeler", text)
    if spec.name not in LABELERS and spec.argument is not None:
        loaded = load("labeler", f"{spec.name}:{spec.argument}")
        if not isinstance(loaded, type):
            return CallableLabeler(loaded, name=text) if inspect.isroutine(loaded) else loaded
    return build_named("labeler", text, LABELERS)[0]


def make_policy(policy: Any) -> Governor:
    """Builds a policy, or a chain joined by ` | `, with its `explore` and `enforce` switches."""
    if isinstance(policy, Governor):
        return policy
    if not isinstance(policy, str):
        check_members("policy", policy, Policy)
        return Governor(policy)
    switches: dict[str, Any] = {}
    parts: list[Policy] = []
    for text in policy.split(" | "):
        spec = parse_spec("policy", text)
        options = dict(spec.options)
        for switch in SWITCHES:
            if switch in options:
                value = options.pop(switch)
                if switches.setdefault(switch, value) != value:
                    raise ConfigurationError(f"The policy {policy!r} gives {switch} twice: give it once.")
        part = build_parsed("policy", text, replace(spec, options=options), POLICIES, SWITCHES)
        check_members("policy", part, Policy)
        parts.append(part)
    return Governor(parts[0] if len(parts) == 1 else PolicyChain(parts), **switches)


def make_reviewer(reviewer: Any, timeout_s: float) -> TimedReviewer | None:
    """Builds a reviewer from `module:function` or `module:Class?option=1`, an object or a callable.

    None stays None.
    """
    if reviewer is None:
        return None
    if isinstance(reviewer, str):
        text, spec = reviewer, parse_spec("reviewer", reviewer)
        if spec.argument is None:
            raise ConfigurationError(f"The reviewer {text!r} is not of the form package.module:function.")
        reviewer = load("reviewer", f"{spec.name}:{spec.argument}")
        if isinstance(reviewer, type):
            reviewer = construct("reviewer", text, reviewer, spec.options)
        elif spec.options:
            raise ConfigurationError(f"The reviewer {text!r} is no class: only a class takes options.")
    return TimedReviewer(reviewer, timeout_s)


def split_bank_url(bank: str) -> tuple[str, str | None, tuple[str, ...]]:
    """Splits `URL?scope=TEMPLATE&read_scopes=A,B` into URL, scope template and further scopes to read.

    A plain path means an SQLite file. Other parameters stay with the URL of a PostgreSQL server.

    Raises:
        ConfigurationError: If there is no place, a parameter is given twice, or the scope is empty.
    """
    if bank == OBJECT:
        parse_spec("bank", bank)
    url, _, query = bank.partition("?")
    if not url:
        raise ConfigurationError(f'The bank {bank!r} names no place: give a path, a URL or "memory:".')
    given = parse_qsl(query, keep_blank_values=True)
    pairs = dict(given)
    if len(pairs) < len(given):
        raise ConfigurationError(f"The bank {bank!r} gives a parameter twice: give each once.")
    scope = pairs.pop("scope", None)
    if scope == "":
        raise ConfigurationError(f"The bank {bank!r} has an empty scope: name one, or leave it out.")
    read_scopes = tuple(dict.fromkeys(name for name in pairs.pop("read_scopes", "").split(",") if name))
    if not url.startswith("memory:") and "://" not in url:
        url = f"sqlite:///{url}"
    if url.startswith("sqlite:///"):  # absolute at once: the current folder may change before it is opened
        url = f"sqlite:///{os.path.abspath(url.removeprefix('sqlite:///'))}"
    if pairs and not url.startswith("postgresql"):
        raise ConfigurationError(
            f"The bank {bank!r} has an unknown parameter {next(iter(pairs))!r}: "
            "it takes scope and read_scopes."
        )
    return url + (f"?{urlencode(pairs)}" if pairs else ""), scope, read_scopes


def make_bank(url: str, *, read_only: bool, clock: Callable[[], float]) -> Bank:
    """Opens a bank by URL; one in memory is new, so that reading only would leave it without tables."""
    return SqlBank(url, read_only=read_only and not url.startswith("memory:"), clock=clock)


def snapshot_path(url: str) -> Path | None:
    """Where the index of a bank file is kept: beside it; None for other banks."""
    if not url.startswith("sqlite:///"):
        return None
    return Path(url.removeprefix("sqlite:///") + ".index")


def check_retriever(retriever: Any) -> None:
    """Raises ConfigurationError for a retriever that can never be built, before there is a bank."""
    if isinstance(retriever, str):
        spec = parse_spec("retriever", retriever)
        if spec.name not in RETRIEVERS and spec.argument is None:
            raise ConfigurationError(
                f"There is no retriever {retriever!r}: choose one of {', '.join(sorted(RETRIEVERS))}, or "
                "write package.module:name."
            )
    else:
        check_members("retriever", retriever, Retriever)


def make_retriever(retriever: Any, bank: Bank, url: str) -> Retriever:
    """Builds a retriever over a bank."""
    if isinstance(retriever, str):
        retriever, _ = build_named(
            "retriever", retriever, RETRIEVERS, bank=bank, snapshot_path=snapshot_path(url)
        )
    check_members("retriever", retriever, Retriever)
    return cast(Retriever, retriever)


def make_summarizer(summarizer: Any, observation_space: Any, action_space: Any) -> Summarizer:
    """Builds a summarizer; a class with `for_spaces` is built for the environment's spaces."""
    if summarizer is None:
        summarizer = "generic"
    if isinstance(summarizer, str):
        fixed = {"observation_space": observation_space, "action_space": action_space}
        summarizer = _named_summarizer(summarizer, fixed)
    check_members("summarizer", summarizer, Summarizer)
    return cast(Summarizer, summarizer)


def _named_summarizer(text: str, fixed: Mapping[str, Any]) -> Any:
    spec = parse_spec("summarizer", text)
    if spec.name not in SUMMARIZERS and spec.argument is not None:
        for_spaces = getattr(load("summarizer", f"{spec.name}:{spec.argument}"), "for_spaces", None)
        if for_spaces is not None:
            return construct("summarizer", text, for_spaces, spec.options, fixed)
    return build_named("summarizer", text, SUMMARIZERS, **fixed)[0]
