"""Reads a recorded stream: checked as a whole when opened, held as line offsets only."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path

from ceb_gym.errors import StreamError
from ceb_gym.streams.codec import FormatFault, decode_episode, decode_header, parse_json
from ceb_gym.streams.values import RecordedEpisode, StreamHeader

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Stream:
    """The episodes of one file, read from it one at a time.

    The file must not change while the stream is in use. Holds no open file, so it can be pickled, copied
    and used after a fork.

    Attributes:
        path: The file.
        header: Its first line.
        episode_ids: All ids, in file order.
        n_steps: Number of steps of all episodes.
        has_initial_rewards: Whether every episode states the reward of doing nothing.
        has_successes: Whether every episode states whether it succeeded.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads and checks the whole file once.

        Raises:
            StreamError: If the file cannot be read or breaks the format.
        """
        self.path = Path(path)
        self.n_steps = 0
        self.has_initial_rewards = True
        self.has_successes = True
        self._offsets = array("q")
        self._line_numbers = array("q")
        self._index_by_id: dict[str, int] = {}
        try:
            self._scan()
        except OSError as error:
            raise StreamError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        self.episode_ids = tuple(self._index_by_id)

    def __len__(self) -> int:
        """Returns the number of episodes."""
        return len(self._offsets)

    def __getitem__(self, index: int) -> RecordedEpisode:
        """Returns the episode at a position in file order; negative ones count from the end."""
        position = range(len(self))[index]
        try:
            with self.path.open("rb") as file:
                file.seek(self._offsets[position])
                line = file.readline()
        except OSError as error:
            raise StreamError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        episode = self._decode(line, self._line_numbers[position])
        if episode.episode_id != self.episode_ids[position]:
            raise StreamError(
                f"{self.path}:{self._line_numbers[position]}: the file changed while it was in use; "
                "write a new stream to another path instead"
            )
        return episode

    def __iter__(self) -> Iterator[RecordedEpisode]:
        """Yields the episodes in file order."""
        return (self[index] for index in range(len(self)))

    def index_of(self, episode_id: str) -> int:
        """Returns the position of an episode.

        Raises:
            StreamError: If the stream has no such episode.
        """
        try:
            return self._index_by_id[episode_id]
        except KeyError:
            raise StreamError(
                f"{self.path}: no episode {episode_id!r}; the first of its {len(self)} is "
                f"{self.episode_ids[0]!r}"
            ) from None

    def _scan(self) -> None:
        # Offsets need a file that can be read again; a pipe cannot, and a device may never end.
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise StreamError(f"{self.path}: not a regular file; give the path of a stream written to disk")
        header: StreamHeader | None = None
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip() not in (b"", _BYTE_ORDER_MARK):
                    if header is None:
                        header = self._decode_header(line.removeprefix(_BYTE_ORDER_MARK), number)
                    else:
                        self._note(self._decode(line, number), offset, number)
                offset += len(line)
        if header is None:
            raise StreamError(f"{self.path}:1: the file is empty; a stream starts with a header line")
        if not self._index_by_id:
            raise StreamError(f"{self.path}:2: the stream holds no episode")
        self.header = header

    def _note(self, episode: RecordedEpisode, offset: int, number: int) -> None:
        first = self._index_by_id.get(episode.episode_id)
        if first is not None:
            raise StreamError(
                f"{self.path}:{number}: episode id {episode.episode_id!r} was already used in line "
                f"{self._line_numbers[first]}; ids must be unique"
            )
        self._index_by_id[episode.episode_id] = len(self._offsets)
        self._offsets.append(offset)
        self._line_numbers.append(number)
        self.n_steps += len(episode.steps)
        self.has_initial_rewards &= episode.initial_reward is not None
        self.has_successes &= episode.success is not None

    def _decode_header(self, line: bytes, number: int) -> StreamHeader:
        try:
            return decode_header(parse_json(line.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise StreamError(f"{self.path}:{number}: not a recorded stream: no UTF-8 text") from error
        except FormatFault as fault:
            raise StreamError(f"{self.path}:{number}: not a usable header: {fault}.") from fault

    def _decode(self, line: bytes, number: int) -> RecordedEpisode:
        try:
            return decode_episode(parse_json(line.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise StreamError(f"{self.path}:{number}: not UTF-8 text: {error.reason}.") from error
        except FormatFault as fault:
            raise StreamError(f"{self.path}:{number}: {fault}.") from fault


def read_stream(path: str | os.PathLike[str]) -> Stream:
    """Opens a recorded stream and checks all of it.

    Args:
        path: A file in the format of docs/stream-format.md.

    Raises:
        StreamError: If the file cannot be read or breaks the format; the message starts with file and line.
    """
    return Stream(path)
