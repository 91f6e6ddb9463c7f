"""Recorded streams: the JSON Lines format and its importers."""
