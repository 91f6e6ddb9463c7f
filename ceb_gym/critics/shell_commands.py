"""Which commands a line of shell would run, read without running anything.

A tolerant reader of the POSIX shell's and bash's grammar: quotes, substitutions, pipes, here-documents and
redirections are told apart, so that the quoted text in `echo "rm -rf /"` is no command while the one in
`echo "$(rm -rf /)"` is. One pass over the text; broken input gives what could be read of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_DEPTH = 100  # of nested parentheses and substitutions; deeper ones are taken as text

_PLAIN = re.compile(r"[^\s'\"\\`$;&|<>()#]+")
_SPACES = re.compile(r"[^\S\n]+")
_IN_DOUBLE_QUOTES = re.compile(r'[^"\\$`]+')
_REDIRECTION = re.compile(r"<<<|<<-?|<&|<>|&>>|&>|>>|>&|>\||<|>")
_SEPARATOR = re.compile(r"&&|\|\||\|&|;;|[;&|]")
_LINE_END = re.compile(r"\n|$")


class Redirect(NamedTuple):
    """A redirection, such as `>` to `out.txt`; for `<<` the target is the here-document's text."""

    operator: str
    target: str


class SimpleCommand(NamedTuple):
    """Words and redirections between two separators, quotes removed, nothing expanded.

    Attributes:
        piped: Whether its input comes from a command before it.
    """

    words: tuple[str, ...]
    redirects: tuple[Redirect, ...] = ()
    piped: bool = False


@dataclass(slots=True)
class _Frame:
    """The command that is being read inside one pair of parentheses, backticks or the whole text."""

    closer: str = ""
    substitution: bool = False  # its output becomes part of a word of the frame around it
    text_only: bool = False  # arithmetic, arrays and patterns hold no commands
    words: list[str] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    word: list[str] | None = None
    in_double_quotes: bool = False
    operator: str = ""
    piped: bool = False


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._frames = [_Frame()]
        self._here_documents: list[str] = []
        self._found: list[SimpleCommand] = []

    def read(self) -> list[SimpleCommand]:
        while self._place < len(self._text):
            if self._frames[-1].in_double_quotes:
                self._read_in_double_quotes()
            else:
                self._read_bare()
        while self._frames:
            self._end_command()
            self._frames.pop()
        return self._found

    def _read_in_double_quotes(self) -> None:
        frame, char = self._frames[-1], self._text[self._place]
        if run := _IN_DOUBLE_QUOTES.match(self._text, self._place):
            self._add(run.group(), run.end())
        elif char == '"':
            frame.in_double_quotes = False
            self._place += 1
        elif char == "\\":
            self._add(self._text[self._place + 1 : self._place + 2], self._place + 2)
        else:
            self._read_substitution(char)

    def _read_bare(self) -> None:
        char = self._text[self._place]
        if run := _PLAIN.match(self._text, self._place):
            self._add(run.group(), run.end())
        elif run := _SPACES.match(self._text, self._place):
            self._end_word()
            self._place = run.end()
        elif char == "\n":
            self._end_line()
        elif char in "'\"\\":
            self._read_quote(char)
        elif char in "$`":
            self._read_substitution(char)
        elif char == "#":
            self._read_hash()
        elif char == "(":
            self._open_parenthesis()
        elif char == ")":
            self._close_parenthesis()
        else:
            self._read_operator(char)

    def _add(self, piece: str, end: int) -> None:
        frame = self._frames[-1]
        if frame.word is None:
            frame.word = []
        frame.word.append(piece)
        self._place = end

    def _read_quote(self, char: str) -> None:
        if char == '"':
            self._add("", self._place + 1)
            self._frames[-1].in_double_quotes = True
        elif char == "'":
            end = self._text.find("'", self._place + 1)
            end = len(self._text) if end < 0 else end
            self._add(self._text[self._place + 1 : end], end + 1)
        elif self._text.startswith("\\\n", self._place):  # a line that goes on
            self._place += 2
        else:
            self._add(self._text[self._place + 1 : self._place + 2], self._place + 2)

    def _read_hash(self) -> None:
        if self._frames[-1].word is not None:
            self._add("#", self._place + 1)
            return
        end = _LINE_END.search(self._text, self._place)
        self._place = end.start() if end else len(self._text)

    def _read_substitution(self, char: str) -> None:
        start = self._place
        if char == "`" and self._frames[-1].closer == "`":
            self._close(1)
        elif char == "`":
            self._open("`", 1, substitution=True)
        elif self._text.startswith("$((", start):
            self._open(")", 2, substitution=True, text_only=True)
            self._open(")", 1, text_only=True)
        elif self._text.startswith("$(", start):
            self._open(")", 2, substitution=True)
        else:
            self._add("$", start + 1)

    def _open(self, closer: str, length: int, *, substitution: bool = False, text_only: bool = False) -> None:
        if len(self._frames) > MAX_DEPTH:
            self._add(self._text[self._place : self._place + length], self._place + length)
            return
        if substitution:
            self._add("$(...)", self._place)
        self._frames.append(_Frame(closer, substitution, text_only))
        self._place += length

    def _close(self, length: int) -> None:
        self._end_command()
        self._frames.pop()
        self._place += length

    def _open_parenthesis(self) -> None:
        frame = self._frames[-1]
        before = frame.word[-1][-1:] if frame.word else ""
        at_start = frame.word is None and not frame.words
        is_array_or_pattern = before != "" and before in "=?*+@!"
        is_arithmetic = at_start and self._text.startswith("((", self._place)
        if frame.text_only or is_array_or_pattern or is_arithmetic:
            self._open(")", 1, text_only=True)
        else:
            if not at_start:  # the name of a function, whose body follows
                frame.words, frame.word = [], None
            self._open(")", 1)

    def _close_parenthesis(self) -> None:
        frame = self._frames[-1]
        if frame.closer == ")":
            self._close(1)
            return
        frame.words, frame.word, frame.operator = [], None, ""  # a pattern of `case`
        self._place += 1

    def _read_operator(self, char: str) -> None:
        frame = self._frames[-1]
        in_test = frame.words[:1] == ["[["] and frame.words[-1] != "]]" and frame.word != ["]]"]
        if frame.text_only or in_test:
            self._add(char, self._place + 1)
            return
        redirection = _REDIRECTION.match(self._text, self._place)
        if redirection is None:
            self._end_command()
            separator = _SEPARATOR.match(self._text, self._place)
            operator = separator.group() if separator else char
            self._frames[-1].piped = operator in ("|", "|&")
            self._place += len(operator)
            return
        if frame.word is not None and "".join(frame.word).isdecimal():
            frame.word = None  # the number of a descriptor
        self._end_word()
        self._place = redirection.end()
        if redirection.group() in "<>" and self._text.startswith("(", self._place):
            self._open(")", 1, substitution=True)
        else:
            frame.operator = redirection.group()

    def _end_word(self) -> None:
        frame = self._frames[-1]
        if frame.word is None:
            return
        word = "".join(frame.word)
        frame.word = None
        if not frame.operator:
            frame.words.append(word)
            return
        frame.redirects.append(Redirect(frame.operator.rstrip("-"), word))
        if frame.operator in ("<<", "<<-"):
            self._here_documents.append(word)
        frame.operator = ""

    def _end_command(self) -> None:
        self._end_word()
        frame = self._frames[-1]
        if (frame.words or frame.redirects) and not frame.text_only:
            self._found.append(SimpleCommand(tuple(frame.words), tuple(frame.redirects), frame.piped))
        frame.words, frame.redirects, frame.operator, frame.piped = [], [], "", False

    def _end_line(self) -> None:
        self._end_word()
        self._place += 1
        texts = iter([self._here_document(delimiter) for delimiter in self._here_documents])
        self._here_documents = []
        frame = self._frames[-1]
        frame.redirects = [
            Redirect("<<", next(texts, "")) if redirect.operator == "<<" else redirect
            for redirect in frame.redirects
        ]
        if not frame.words and not frame.redirects:  # a pipe goes on behind the end of its line
            return
        self._end_command()

    def _here_document(self, delimiter: str) -> str:
        start = self._place
        while self._place < len(self._text):
            line_start = self._place
            line_end = self._text.find("\n", line_start)
            line_end = len(self._text) if line_end < 0 else line_end
            self._place = line_end + 1
            if self._text[line_start:line_end].lstrip("\t") == delimiter:
                return self._text[start:line_start]
        return self._text[start:]


def read_commands(text: str) -> list[SimpleCommand]:
    """Returns the simple commands of a script, inner ones of substitutions before the ones around them."""
    return _Reader(text).read()


def flags(words: Sequence[str]) -> Iterator[str]:
    """The options among a command's arguments: `-rf` as `r` and `f`, `--force=x` as `--force`."""
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            yield word.partition("=")[0]
        elif word.startswith("-"):
            yield from word[1:]


def operands(words: Sequence[str]) -> list[str]:
    """The arguments that are no options; values of options count as operands."""
    return [word for word in words if not word.startswith("-") or word == "-"]
