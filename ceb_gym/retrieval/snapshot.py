"""One file that holds an index, so that a start need not read and count the whole bank again.

A snapshot only ever saves time. It is used where it provably belongs to the bank's own history, and
anything else (broken, foreign, of another version) counts as missing.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ceb_gym.retrieval.analyzer import ANALYZER_VERSION, Vocabulary
from ceb_gym.retrieval.index import MAX_POSTINGS, IndexState
from ceb_gym.retrieval.segment import RecordIds, Segment, assemble

FORMAT_VERSION = 1
STALE_AFTER_S = 86_400.0
"""Unfinished files of killed processes are deleted when they are older than this."""

_log = logging.getLogger(__name__)

UNREADABLE = (
    OSError,
    EOFError,
    MemoryError,
    RecursionError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a broken or foreign file may raise."""

Arrays = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a snapshot was made from.

    Attributes:
        bank_id: Identity of the bank.
        scopes: The scopes, the own one first.
        revisions: Their revisions.
        digests: The bank's digests of the scopes at these revisions.
    """

    bank_id: str
    scopes: tuple[str, ...]
    revisions: tuple[int, ...]
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """An index as it was saved."""

    origin: Origin
    vocabulary: Vocabulary
    state: IndexState


def write_snapshot(path: Path, snapshot: Snapshot) -> bool:
    """Writes the file as a whole or not at all; returns whether it did.

    A disk that is full or read-only is logged and otherwise ignored: the index can be rebuilt.
    """
    arrays = _to_arrays(snapshot)
    temporary: Path | None = None
    try:
        # opened by hand, so that who may read the bank beside it may read this too: mkstemp is for one user
        name = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        with name.open("xb") as file:
            temporary = name
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        _log.warning(
            "The index of the bank was not saved to %s: %s. The next start rebuilds it.", path, error
        )
        return False
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
    _delete_stale(path)
    return True


def _delete_stale(path: Path) -> None:
    """Deletes what processes left behind that were killed while writing."""
    with suppress(OSError):
        for other in path.parent.iterdir():
            if other.name.startswith(f"{path.name}.") and other.name.endswith(".tmp"):
                with suppress(OSError):
                    if time.time() - other.stat().st_mtime > STALE_AFTER_S:
                        other.unlink()


def read_snapshot(path: Path) -> Snapshot | None:
    """Reads a file; None where there is none, or none that can be used."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _from_arrays({name: arrays[name] for name in arrays.files})
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        _log.info("The saved index %s cannot be used (%s); it is rebuilt.", path, error)
        return None


def _to_arrays(snapshot: Snapshot) -> Arrays:
    origin = snapshot.origin
    head = {
        "format": FORMAT_VERSION,
        "analyzer": ANALYZER_VERSION,
        "bank_id": origin.bank_id,
        "scopes": origin.scopes,
        "revisions": origin.revisions,
        "digests": origin.digests,
        "parts": len(snapshot.state.parts),
    }
    # No word of the analyzer holds white space, so that lines keep words apart.
    arrays = {"head": _packed(json.dumps(head)), "words": _packed("\n".join(snapshot.vocabulary.words()))}
    for number, part in enumerate(snapshot.state.parts):
        segment = part.segment
        counts = np.rint(np.sqrt(segment.squares.data.astype(np.float64))).astype(np.uint32)
        arrays |= {
            f"{number}.{name}": array
            for name, array in {
                "terms": segment.terms,
                "counts": counts.astype(np.min_scalar_type(counts.max(initial=0))),
                "columns": segment.squares.indices,
                "row_starts": segment.squares.indptr,
                "num_productive": np.array(segment.num_productive),
                "scopes": segment.scopes,
                "times": segment.times,
                "id_text": segment.ids.text,
                "id_ends": segment.ids.ends,
                "id_hashes": segment.ids.hashes,
                "dead": part.dead,
            }.items()
        }
    return arrays


def _packed(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)


def _unpacked(array: NDArray[Any]) -> str:
    return array.astype(np.uint8, casting="no").tobytes().decode("utf-8", "surrogatepass")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _from_arrays(arrays: Arrays) -> Snapshot:
    """Rebuilds the values. Wrong positions would crash the C code that follows them, so all are checked."""
    head = json.loads(_unpacked(arrays["head"]))
    versions = (head["format"], head["analyzer"])
    _require(versions == (FORMAT_VERSION, ANALYZER_VERSION), f"versions {versions}")
    origin = Origin(
        str(head["bank_id"]),
        tuple(map(str, head["scopes"])),
        tuple(map(int, head["revisions"])),
        tuple(map(str, head["digests"])),
    )
    text = _unpacked(arrays["words"])
    words = text.split("\n") if text else []
    vocabulary = Vocabulary(words)
    _require(len(vocabulary) == len(words), "a word twice")
    pieces = [
        _read_part(arrays, number, len(words), len(origin.scopes)) for number in range(int(head["parts"]))
    ]
    state = IndexState.of_segments([segment for segment, _ in pieces], [dead for _, dead in pieces])
    return Snapshot(origin, vocabulary, state)


def _read_part(arrays: Arrays, number: int, num_words: int, num_scopes: int) -> tuple[Segment, NDArray[Any]]:
    def array(name: str, dtype: Any) -> NDArray[Any]:
        found: NDArray[Any] = arrays[f"{number}.{name}"]
        _require(found.ndim == 1 and found.dtype == dtype, f"{name} is {found.dtype} with {found.ndim} axes")
        return found

    scopes, times, terms = array("scopes", np.int16), array("times", np.float64), array("terms", np.int64)
    n = len(scopes)
    ids = RecordIds(array("id_text", np.uint8), array("id_ends", np.int64), array("id_hashes", np.int64))
    columns, starts, dead = array("columns", np.int32), array("row_starts", np.int32), array("dead", np.int64)
    counts = arrays[f"{number}.counts"]
    num_productive = int(arrays[f"{number}.num_productive"])
    _require(0 < n == len(times) == len(ids.ends) == len(ids.hashes), "lengths differ")
    _require(0 <= num_productive <= n, "more productive documents than documents")
    _check_rising(np.concatenate([[0], ids.ends]), len(ids.text), "ends of ids")
    _check_rising(starts, len(columns), "starts of rows")
    _require(len(starts) == n + 1 and starts[0] == 0 and len(counts) == len(columns), "rows")
    _require(counts.dtype.kind == "u" and bool((counts > 0).all()), "counts")
    _require(len(columns) <= MAX_POSTINGS and _within(columns, len(terms)), "columns")
    _require(_within(scopes, num_scopes) and _within(dead, n), "scopes or dead documents")
    _require(bool((np.diff(dead) > 0).all() and (np.diff(terms) > 0).all()), "order")
    _require(_within(terms & 0xFFFFFFFF, num_words) and _within(terms >> 32, num_words + 1), "terms")
    inside = np.diff(columns) > 0
    inside[starts[(starts > 0) & (starts < len(columns))] - 1] = True
    _require(bool(inside.all()), "order of columns")
    squares = sparse.csr_matrix((np.square(counts.astype(np.float32)), columns, starts), (n, len(terms)))
    return assemble(terms, squares, num_productive, scopes, times, ids), dead


def _check_rising(array: NDArray[Any], last: int, what: str) -> None:
    _require(bool((np.diff(array) >= 0).all()) and array[-1] == last, what)


def _within(array: NDArray[Any], limit: int) -> bool:
    return not len(array) or bool(array.min() >= 0 and array.max() < limit)


def same_scopes(origin: Origin, bank_id: str, scopes: Sequence[str]) -> bool:
    """Whether a snapshot is of this bank and these scopes, in this order."""
    return origin.bank_id == bank_id and origin.scopes == tuple(scopes)
