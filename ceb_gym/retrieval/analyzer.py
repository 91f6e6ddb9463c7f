"""From keys to numbered terms: the words and word pairs that scikit-learn's `TfidfVectorizer` sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
IntArray = NDArray[np.int64]

ANALYZER_VERSION = 1
"""Goes into each snapshot; to be raised whenever the same key would give other terms."""

UNKNOWN_WORD = -1

_find_words = re.compile(r"(?u)\b\w\w+\b").findall


def words_of(key: str) -> list[str]:
    """Lower-cased words of two or more characters, as `TfidfVectorizer` finds them by default."""
    words: list[str] = _find_words(key.lower())
    return words


@dataclass(frozen=True, slots=True)
class EncodedKeys:
    """Keys as word numbers, all in one array.

    Attributes:
        words: Shape (total words,), the number of each word, `UNKNOWN_WORD` where it has none.
        lengths: Shape (n,), words in each key.
    """

    words: Int32Array
    lengths: Int32Array

    def owners(self) -> Int32Array:
        """Shape (total words,): to which key each word belongs."""
        return np.repeat(np.arange(len(self.lengths), dtype=np.int32), self.lengths)


class _WordNumbers(dict[str, int]):
    """Numbers each word at its first look-up."""

    def __missing__(self, word: str) -> int:
        number = len(self)
        self[word] = number
        return number


class Vocabulary:
    """Numbers words in the order they come; a number never changes.

    A number is only a name: whether a term exists in a corpus, and how often, is stored with the corpus.
    So older states may share a vocabulary that has grown since. One thread adds at a time (the caller
    locks); others may look words up meanwhile.
    """

    def __init__(self, words: Iterable[str] = ()) -> None:
        self._numbers = _WordNumbers()
        for word in words:
            self._numbers[word]

    def __len__(self) -> int:
        return len(self._numbers)

    def words(self) -> list[str]:
        """All words in the order of their numbers."""
        return list(self._numbers)

    def add(self, keys: Sequence[str]) -> EncodedKeys:
        """Encodes keys; words never seen get the next numbers."""
        numbers: list[int] = []
        lengths: list[int] = []
        number_of = self._numbers.__getitem__
        for key in keys:
            words = _find_words(key.lower())
            lengths.append(len(words))
            numbers.extend(map(number_of, words))
        return EncodedKeys(np.array(numbers, dtype=np.int32), np.array(lengths, dtype=np.int32))

    def look_up(self, keys: Sequence[str]) -> EncodedKeys:
        """Encodes keys without learning: a word never seen is `UNKNOWN_WORD`."""
        numbers: list[int] = []
        lengths: list[int] = []
        number_of = self._numbers.get
        for key in keys:
            words = _find_words(key.lower())
            lengths.append(len(words))
            numbers.extend(number_of(word, UNKNOWN_WORD) for word in words)
        return EncodedKeys(np.array(numbers, dtype=np.int32), np.array(lengths, dtype=np.int32))


def pair_codes(first: Int32Array, second: Int32Array) -> IntArray:
    """Codes of word pairs; together with the word numbers as codes of single words they are unique."""
    return ((first.astype(np.int64) + 1) << 32) | second


def term_codes(encoded: EncodedKeys) -> tuple[IntArray, Int32Array]:
    """All terms of all keys, with repeats: the words first, then the pairs of neighbouring words.

    Returns:
        The terms' codes and the keys they belong to, both of shape (total terms,). Terms with an unknown
        word are left out; a pair never spans over one.
    """
    words, owners = encoded.words, encoded.owners()
    known = words >= 0
    paired = known[:-1] & known[1:] & (owners[:-1] == owners[1:])
    pairs = pair_codes(words[:-1][paired], words[1:][paired])
    return np.concatenate([words[known].astype(np.int64), pairs]), np.concatenate(
        [owners[known], owners[:-1][paired]]
    )
