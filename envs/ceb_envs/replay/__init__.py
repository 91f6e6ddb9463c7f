"""Plays recorded streams back as an environment."""

from __future__ import annotations

from ceb_envs.replay.env import ReplayEnv
from ceb_envs.replay.summarizer import ReplaySummarizer

__all__ = ["ReplayEnv", "ReplaySummarizer"]
