"""Text that can be stored and compared: cleaning, cutting, and the retrieval key."""

from __future__ import annotations

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Replaces NUL and lone surrogates by U+FFFD, so that every bank and file can hold the text."""
    return _UNSTORABLE.sub("\ufffd", text)


def shorten(text: str, max_chars: int) -> str:
    """Keeps head and tail of a long text and says how many characters were cut between them.

    Args:
        text: Any text.
        max_chars: At most this many characters of `text` are kept, at least 2: two thirds of them from
            the head. The note about the cut comes on top.
    """
    if len(text) <= max_chars:
        return text
    tail = max_chars // 3
    head = max_chars - tail
    cut = len(text) - head - tail
    return f"{text[:head]}\n[... {cut} characters cut ...]\n{text[-tail:] if tail else ''}"


def number_text(value: float) -> str:
    """The shortest text that reads back as the same number, fit for a spec string."""
    value = value + 0.0 if isinstance(value, float) else value  # zero has no sign in a name
    short = f"{value:g}"
    return (short if float(short) == value else repr(float(value))).replace("e+", "e")


def retrieval_key(task: str, state: str, action: str) -> str:
    """The composite key that precedents are compared by (arXiv 2607.12397)."""
    return f"task: {task} || state: {state} || action: {action}"


def harmless(text: str) -> str:
    """Returns the text with control characters spelled out: agents' text could steer a terminal."""
    return "".join(
        char if char in "\n\t" or not (ord(char) < 32 or 127 <= ord(char) < 160) else f"\\x{ord(char):02x}"
        for char in text
    )
