"""Risky presses on a screen: which button an action in text form presses, and which words on it are risky.

Reads the usual ways to write such actions: `CLICK [42] <button> Delete account`, `[button]  Buy now ->
CLICK`, `click("Send")`, `Tap on the "Pay" button`, `{"action": "click", "target": "Uninstall"}`. English
words only. What is typed into a field is never risky; coordinates alone say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MAX_ACTION_CHARS = 2000  # names of buttons are short: nothing behind this is looked at
MAX_LABEL_WORDS = 8  # longer texts are sentences to read, not buttons


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


_PRESS = _set_of(
    "click clicks clicking tap taps tapping press presses pressing push touch dblclick doubleclick longpress "
    "longclick"
)
_OTHER_VERBS = _set_of(
    "type types typing fill input enter write set select choose scroll swipe drag hover goto go navigate "
    "open launch back wait look read search find answer stop noop none"
)
_FIELDS = _set_of("textbox searchbox combobox textarea input edittext radio checkbox option select slider")
_ROLES = _set_of(
    "button link a img image icon span div svg p li td tr th label tab menu menuitem item text textview "
    "imagebutton imageview view action element target selector class id name value role type true false "
    "long double left right"
)
_FILLERS = _set_of("on at in the this that your my a an yes ok okay please i now")
_JOINTS = _set_of("and to or yes ok okay confirm continue proceed agree accept")
_HARMLESS = _set_of("cookie cookies filter filters help faq policy history tutorial")
_NOT_SENT = ("send msg to user", "report infeasible")  # how an agent answers in BrowserGym

_QUOTED = re.compile(r'"([^"\n]*)"|(?<!\w)\'([^\'\n]*)\'(?!\w)')
_BRACKETED = re.compile(r"<([^<>\n]*)>|\[([^\[\]\n]*)\]|\(([^()\n]*)\)")
_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Phrases:
    """Words that make a button risky.

    Attributes:
        leading: Begin the label, or end it behind a word such as "and", as in "Review and submit".
        whole: Are all of the label: words that mean other things in longer texts, such as "order".
    """

    leading: frozenset[tuple[str, ...]]
    whole: frozenset[tuple[str, ...]] = frozenset()

    def match(self, label: tuple[str, ...]) -> str:
        """Returns the phrase that makes this label risky, or ""."""
        if label in self.whole:
            return " ".join(label)
        for length in range(1, min(4, len(label)) + 1):
            if label[:length] in self.leading:
                return " ".join(label[:length])
            if label[-length:] in self.leading and _joined(label, length):
                return " ".join(label[-length:])
        return ""


def _joined(label: tuple[str, ...], length: int) -> bool:
    return length < len(label) <= 5 and label[-length - 1] in _JOINTS


def _phrases(leading: str, whole: str = "") -> Phrases:
    return Phrases(_split(leading), _split(whole))


def _split(phrases: str) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(phrase.split()) for phrase in phrases.split(", ") if phrase)


SCREEN_RISKS: Mapping[str, Phrases] = MappingProxyType(
    {
        "uninstall": _phrases("uninstall, remove app, remove extension, delete app, disable app"),
        "pay": _phrases(
            "pay, buy, purchase, checkout, place order, place your order, place my order, order now, "
            "book now, reserve now, rent now, complete order, complete purchase, complete booking, "
            "complete payment, submit payment, make payment, send money, transfer, donate, subscribe, "
            "start free trial, add card",
            "order, book, reserve, rent, check out, proceed to check out",
        ),
        "delete": _phrases(
            "delete, erase, remove, discard, wipe, clear all, clear data, clear cache, clear storage, "
            "empty trash, empty bin, empty cart, factory reset, erase all data, deactivate, close account, "
            "cancel order, cancel booking, cancel subscription, cancel reservation, move to trash",
            "format, trash",
        ),
        "overwrite": _phrases("overwrite, replace, reset, restore defaults, save over", "restore, revert"),
        "privilege": _phrases(
            "allow, grant, authorize, authorise, give access, make admin, add admin, turn off protection"
        ),
        "send": _phrases(
            "send, publish, tweet, reply, post comment, post now, share now, submit review, send invite",
            "post, share, call, comment, forward, invite",
        ),
        "submit": _phrases(
            "submit, confirm, register, sign up, create account, apply now, save changes", "apply, finish"
        ),
        "network": _phrases("download, upload, install, update all", "connect, get, update"),
    }
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text)))


def _label(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words on the button, without what it is; () where it is none."""
    if not _FIELDS.isdisjoint(words[:2]):
        return ()
    start, end = 0, len(words)
    while start < end and (words[start] in _ROLES | _FILLERS or words[start].isdecimal()):
        start += 1
    while end > start and (words[end - 1] in _ROLES or words[end - 1].isdecimal()):
        end -= 1
    return words[start:end]


def pressed_labels(action: str) -> list[tuple[str, ...]]:
    """Returns what may be the words on the button that an action presses, each as lower-case words.

    An action without a verb, such as `submit` or `uninstall("Maps")`, is its own label.
    """
    action = action[:MAX_ACTION_CHARS]
    element, arrow, verb_text = action.rpartition(" -> ")
    element, verb_text = (element, verb_text) if arrow else (action, action)
    quoted = [first or second for first, second in _QUOTED.findall(element)]
    bare = _QUOTED.sub(" ", element)
    bracketed = ["".join(parts) for parts in _BRACKETED.findall(bare)]
    rest = _words(_BRACKETED.sub(" ", bare))
    verbs = _words(verb_text if arrow else verb_text.replace('"', " ").replace("'", " "))
    verb = next((word for word in verbs if word in _PRESS or word in _OTHER_VERBS), "")
    if not arrow and (rest[:1] and rest[0] not in _PRESS | _OTHER_VERBS) and verb not in rest:
        verb = ""
    if verb in _OTHER_VERBS:
        return []
    if any(_FIELDS & set(_words(part)) for part in bracketed):
        return []
    if not verb:
        return [] if " ".join(rest[:4]) in _NOT_SENT else [_label(rest)]
    behind = rest[rest.index(verb) + 1 :] if verb in rest and not arrow else rest
    return [_label(words) for words in (behind, *map(_words, (*quoted, *bracketed)))]


def risky_press(action: str, phrases: Phrases) -> str:
    """Returns the risky words on what the action presses, or ""."""
    for label in pressed_labels(action):
        if 0 < len(label) <= MAX_LABEL_WORDS and _HARMLESS.isdisjoint(label):
            found = phrases.match(label)
            if found:
                return found
    return ""
