"""Recorded agent runs: one JSON Lines format, its reader and writer, and importers for other logs."""

from __future__ import annotations

from ceb_gym.streams.reader import Stream, read_stream
from ceb_gym.streams.values import RecordedEpisode, RecordedStep, StreamHeader
from ceb_gym.streams.writer import write_stream

__all__ = [
    "RecordedEpisode",
    "RecordedStep",
    "Stream",
    "StreamHeader",
    "read_stream",
    "write_stream",
]
