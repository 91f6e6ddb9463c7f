"""Gymnasium wrappers that attach a Critic Experience Bank confidence to every step."""
