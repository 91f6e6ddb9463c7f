"""Policies: what happens with a judged action."""
