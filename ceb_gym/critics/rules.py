"""Low confidence for risky actions, by a table of rules that needs no bank and no model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from ceb_gym.critics.screen_risks import SCREEN_RISKS, Phrases, risky_press
from ceb_gym.critics.shell_risks import (
    DELETE,
    NETWORK,
    OVERWRITE,
    PRIVILEGE,
    SEND,
    STOP,
    UNINSTALL,
    Risks,
    RunCommand,
    formats_a_disk,
    is_notable,
    overwrites_by_redirection,
    run_commands,
    runs_its_input,
    talks_by_redirection,
)
from ceb_gym.errors import ConfigurationError
from ceb_gym.text import harmless, shorten
from ceb_gym.types import Precedents, Query, Verdict

Kind = Literal["bash", "web", "android"]
RuleKind = Literal["bash", "web", "android", "any"]

_SHOWN_CHARS = 80
_KIND_BY_WORD: Mapping[str, Kind] = {  # in the environment's id
    "bash": "bash",
    "intercode": "bash",
    "android": "android",
    "amex": "android",
    "mind2web": "web",
    "miniwob": "web",
    "browsergym": "web",
    "webarena": "web",
    "web": "web",
}


class ProposedAction:
    """An action as text, and as the programs it would run when it is read as shell.

    Attributes:
        text: The action.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def commands(self) -> list[RunCommand]:
        """The programs, read once for all rules."""
        return run_commands(_bare_script(self.text))

    @cached_property
    def notable_commands(self) -> list[RunCommand]:
        """Those of the programs that the built-in rules know something about."""
        return [run for run in self.commands if is_notable(run)]


def _bare_script(text: str) -> str:
    """The script inside what agents put around one: `execute[...]`, or a fence of three backticks."""
    stripped = text.strip()
    if stripped.startswith("execute[") and stripped.endswith("]"):
        return stripped.removeprefix("execute[").removesuffix("]")
    opening, _, body = stripped.partition("\n")
    if opening in ("```", "```bash", "```sh", "```shell") and body.endswith("```"):
        return body.removesuffix("```")
    return text


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of risky action.

    Attributes:
        name: Shown as the reason, such as "bash/delete".
        kind: The environments it is for; "any" is applied in each, known or not.
        matches: Whether an action is risky; a text says what in it is.
        confidence: In [0, 1]; None takes what the critic gives risky actions.
    """

    name: str
    kind: RuleKind
    matches: Callable[[ProposedAction], bool | str | None]
    confidence: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not callable(self.matches):
            raise ConfigurationError(f"The rule {self.name!r} needs a name and a `matches` to call.")
        if self.kind not in get_args(RuleKind):
            raise ConfigurationError(
                f"The rule {self.name} has the kind {self.kind!r}: choose one of "
                f"{', '.join(get_args(RuleKind))}."
            )
        if self.confidence is not None:
            _check_confidence(f"The confidence of the rule {self.name}", self.confidence)


def _check_confidence(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigurationError(f"{what} is {value!r}: give a number in [0, 1].")
    return float(value)


def _bash_rule(name: str, risks: Risks, *further: Callable[[RunCommand], bool]) -> Rule:
    def matches(action: ProposedAction) -> str:
        for run in action.notable_commands:
            question = risks.get(run.name)
            asked_for_help = run.arguments in (("--help",), ("--version",))
            if question is not None and not asked_for_help and question(run):
                return " ".join((run.name, *run.arguments[:20]))
            if any(asks(run) for asks in further):
                return " ".join((run.name, *run.arguments[:20], *(f"{op} {to}" for op, to in run.redirects)))
        return ""

    return Rule(f"bash/{name}", "bash", matches)


def _screen_rule(kind: Kind, name: str, phrases: Phrases) -> Rule:
    return Rule(f"{kind}/{name}", kind, lambda action: risky_press(action.text, phrases))


def _android_shell_rule() -> Rule:
    def matches(action: ProposedAction) -> bool:
        words = action.text[:2000].split()
        return words[:1] in (["adb"], ["pm"]) and any(word in words for word in ("uninstall", "clear"))

    return Rule("android/uninstall", "android", matches)


BUILT_IN_RULES: tuple[Rule, ...] = (
    _bash_rule("uninstall", UNINSTALL),
    _bash_rule("delete", DELETE),
    _bash_rule("overwrite", OVERWRITE, overwrites_by_redirection, formats_a_disk),
    _bash_rule("stop", STOP),
    _bash_rule("send", SEND),
    _bash_rule("network", NETWORK, talks_by_redirection),
    _bash_rule("unseen_script", {}, runs_its_input),
    _bash_rule("privilege", PRIVILEGE),
    _android_shell_rule(),
    *(_screen_rule("web", name, phrases) for name, phrases in SCREEN_RISKS.items()),
    *(_screen_rule("android", name, phrases) for name, phrases in SCREEN_RISKS.items()),
)


def environment_kind(env_id: str) -> Kind | None:
    """What an environment's id says about its actions; None where it says nothing."""
    lowered = env_id.lower()
    return next((kind for word, kind in _KIND_BY_WORD.items() if word in lowered), None)


class RulesCritic:
    """Gives risky actions a low confidence and leaves all others unscored, or at a fixed number.

    Rules say that an action can do harm, not that it is unproductive: where the task is to delete files,
    deleting is right. Use it in a cascade, or while the bank is cold. It reads English words only, and what
    an action says, not what lies behind it: a script's content, an alias or a pixel is not looked into.

    Args:
        kind: "bash", "web", "android", or "auto": by words in the environment's id. Where these tell
            nothing, only rules of the kind "any" apply.
        risky: Confidence of risky actions, where their rule names none.
        other: Confidence of all other actions; "unscored" or None leaves them unscored.
        rules: Further rules, tried before the built-in ones: the first that matches gives the verdict.
        built_in: Whether the built-in rules are used.
    """

    name = "rules"
    k = 0

    def __init__(
        self,
        kind: str = "auto",
        risky: float = 0.05,
        other: float | str | None = "unscored",
        rules: Iterable[Rule] = (),
        built_in: bool = True,
    ) -> None:
        if kind not in ("auto", *get_args(Kind)):
            raise ConfigurationError(f"The kind of rules is {kind!r}: choose auto, bash, web or android.")
        if not isinstance(built_in, bool):
            raise ConfigurationError(f"built_in of rules is {built_in!r}: give true or false.")
        self._kind = kind
        self._risky = _check_confidence("risky of rules", risky)
        unscored = other is None or other == "unscored"
        self._other = None if unscored else _check_confidence('other of rules (or "unscored")', other)
        self._rules = (*_checked_rules(rules), *(BUILT_IN_RULES if built_in else ()))

    def find(self, query: Query) -> tuple[Rule, str] | None:
        """Returns the first rule that finds the action risky, and what it found; None where none does."""
        kind = environment_kind(query.env_id) if self._kind == "auto" else self._kind
        action = ProposedAction(query.action)
        for rule in self._rules:
            if rule.kind in ("any", kind) and (found := rule.matches(action)):
                return rule, found if isinstance(found, str) else query.action
        return None

    def judge(self, queries: Sequence[Query], precedents: Sequence[Precedents]) -> list[Verdict]:
        """Returns a low confidence for each risky action."""
        return [self._verdict(query) for query in queries]

    def _verdict(self, query: Query) -> Verdict:
        found = self.find(query)
        if found is None:
            return Verdict(self._other, "no rule finds this action risky", self.name)
        rule, what = found
        confidence = self._risky if rule.confidence is None else float(rule.confidence)
        shown = shorten(harmless(" ".join(what[:10_000].split())), _SHOWN_CHARS).replace("\n", " ")
        return Verdict(confidence, f"rule {rule.name}: {shown}", self.name)


def _checked_rules(rules: Any) -> tuple[Rule, ...]:
    given = (rules,) if isinstance(rules, Rule) else rules
    try:
        checked = tuple(given)
    except TypeError:
        raise ConfigurationError(f"The rules are {rules!r}: give a list of Rule.") from None
    for rule in checked:
        if not isinstance(rule, Rule):
            raise ConfigurationError(f"The rules hold {rule!r}: give ceb_gym.critics.rules.Rule values.")
    return checked
