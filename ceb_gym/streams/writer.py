"""Writes a recorded stream: all of it or nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from ceb_gym.errors import StreamError
from ceb_gym.streams.codec import FormatFault, dump_json, episode_object, header_object
from ceb_gym.streams.values import RecordedEpisode, StreamHeader


def write_stream(
    path: str | os.PathLike[str], header: StreamHeader, episodes: Iterable[RecordedEpisode]
) -> int:
    """Writes a stream beside its final place and moves it there when it is complete.

    Readers see the old file or the new one, never a part; a failure leaves the old one in place.

    Args:
        path: The file to make or replace; its folder must exist.
        header: The first line.
        episodes: At least one, with unique ids; consumed once.

    Returns:
        The number of episodes written.

    Raises:
        StreamError: If the place cannot be written to, or an episode breaks the format; the message names
            the file and the line the episode would have been.
    """
    # A link keeps pointing where it did: the file behind it is replaced.
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise StreamError(f"{path}: exists and is no regular file; give a file's path")
    partial = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        with partial.open("xb") as file:
            count = _write_lines(file, path, header, episodes)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise StreamError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return count


def _write_lines(
    file: BinaryIO,
    path: str | os.PathLike[str],
    header: StreamHeader,
    episodes: Iterable[RecordedEpisode],
) -> int:
    number = 1
    line_by_id: dict[str, int] = {}
    try:
        file.write(f"{dump_json(header_object(header))}\n".encode())
        for number, episode in enumerate(episodes, start=2):
            value = episode_object(episode)
            first = line_by_id.setdefault(value["episode_id"], number)
            if first != number:
                raise FormatFault(
                    f"episode id {value['episode_id']!r} was already used in line {first}; ids must be unique"
                )
            file.write(f"{dump_json(value)}\n".encode())
    except FormatFault as fault:
        raise StreamError(f"{path}:{number}: {fault}.") from fault
    if not line_by_id:
        raise StreamError(f"{path}:2: no episode to write; a stream holds at least one")
    return len(line_by_id)
