"""Environments that come along with ceb_gym."""
