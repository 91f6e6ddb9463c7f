"""Any value as text for reading, the same text for equal values in every process."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ceb_gym.summaries.words import MAX_DIMENSIONS

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain_text(value: Any) -> str:
    """Strings as they are, numbers short, the rest as compact JSON or, failing that, its repr.

    Memory addresses are left out and sets sorted, so that a later run gives the same text.
    """
    if isinstance(value, str):
        return str(value)
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float | np.floating):
        return str(value)
    if isinstance(value, np.generic):
        return plain_text(value.item())
    if isinstance(value, np.ndarray):
        return _array_text(value)
    try:
        if isinstance(value, Mapping):
            return "\n".join(f"{key}: {plain_text(item)}" for key, item in value.items())
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_jsonable)
    except (TypeError, ValueError, RecursionError):
        return _ADDRESS.sub("", repr(value))


def _array_text(values: NDArray[Any]) -> str:
    if values.ndim == 0:
        return plain_text(values[()])
    if values.ndim == 1 and values.size <= MAX_DIMENSIONS and values.dtype.kind in "fiu":
        return "[" + " ".join([f"{number:.4g}" for number in values.tolist()]) + "]"
    return _ADDRESS.sub("", np.array2string(values, precision=4, threshold=64, separator=" "))


def _jsonable(value: Any) -> Any:
    if isinstance(value, np.floating):
        return float(str(value))  # a float32 of 0.1 reads 0.1 and not 0.10000000149011612
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        short = values_are_numbers(value) and value.size <= MAX_DIMENSIONS
        return value.tolist() if short else _array_text(value).replace("\n", " ")
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, Mapping):
        return dict(value)
    return plain_text(value) if isinstance(value, bytes | bytearray) else _ADDRESS.sub("", repr(value))


def values_are_numbers(values: NDArray[Any]) -> bool:
    """Whether an array holds real numbers or truth values."""
    return values.dtype.kind in "fiub"
