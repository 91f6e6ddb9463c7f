"""A space of any Unicode text; Gymnasium's own `Text` knows neither spaces nor the empty string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium import Space
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Tuple
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, is_space_dtype_shape_equiv, unflatten
from gymnasium.vector.utils import batch_differing_spaces, create_shared_memory

_SAMPLE_CHARS = 32
# Letters, blanks, marks and characters of two, three and four UTF-8 bytes: what naive code trips over.
_SAMPLE_ALPHABET = tuple("abcxyz019 \t\n\"'\\/|$*<>[]{}&äßλЖ中字🙂")


class UnicodeText(Space[str]):
    """All strings, the empty one included, optionally up to a length.

    In vector environments a batch is a tuple of strings. Text of any length has no place in shared memory:
    use `AsyncVectorEnv(..., shared_memory=False)`.

    Attributes:
        max_chars: The longest text allowed, in characters; None for no limit.
    """

    def __init__(
        self, max_chars: int | None = None, *, seed: int | np.random.Generator | None = None
    ) -> None:
        """Makes the space.

        Raises:
            ValueError: If `max_chars` is negative.
        """
        if max_chars is not None and max_chars < 0:
            raise ValueError(f"max_chars must be at least 0 or None, got {max_chars}.")
        self.max_chars = max_chars
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed size."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Returns a short random text; masks have no meaning here and are refused."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes no mask and no probability.")
        longest = _SAMPLE_CHARS if self.max_chars is None else min(self.max_chars, _SAMPLE_CHARS)
        length = int(self.np_random.integers(longest + 1))
        positions = self.np_random.integers(len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[position] for position in positions)

    def contains(self, x: Any) -> bool:
        """Says whether `x` is a string that is not too long."""
        return isinstance(x, str) and (self.max_chars is None or len(x) <= self.max_chars)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_chars == other.max_chars

    # A space holds a random generator and is compared by value: as in Gymnasium, it is not hashable.
    __hash__ = None  # type: ignore[assignment]  # the way Python spells "not hashable"

    def __repr__(self) -> str:
        return f"UnicodeText({'' if self.max_chars is None else self.max_chars})"


def _refuse_flat(space: UnicodeText, *_: Any) -> NoReturn:
    raise ValueError(
        f"{space} cannot be flattened: text has no fixed size. Turn it into numbers in a wrapper first."
    )


flatdim.register(UnicodeText, _refuse_flat)
flatten.register(UnicodeText, _refuse_flat)
unflatten.register(UnicodeText, _refuse_flat)
flatten_space.register(UnicodeText, _refuse_flat)


@is_space_dtype_shape_equiv.register(UnicodeText)
def _is_equivalent(space_1: UnicodeText, space_2: Space[Any]) -> bool:
    return isinstance(space_2, UnicodeText)


# Gymnasium dispatches on the type of the first space in the list, which its annotation does not say.
@batch_differing_spaces.register(UnicodeText)
def _batch_differing(spaces: Sequence[UnicodeText]) -> Tuple[Any]:  # type: ignore[misc]  # see above
    return Tuple(spaces)


@create_shared_memory.register(UnicodeText)
def _refuse_shared_memory(space: UnicodeText, *_: Any, **__: Any) -> NoReturn:
    raise CustomSpaceError(
        f"{space} has no fixed size and cannot live in shared memory; pass shared_memory=False."
    )
