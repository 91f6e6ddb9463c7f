"""Replay of recorded streams."""
