"""Reviewers: the last word on a deferred action."""
