"""Hindsight labelers: pseudo-labels for finished episodes."""
