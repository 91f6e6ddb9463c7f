"""Agents that come along, for examples and experiments."""
