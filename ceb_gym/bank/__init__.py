"""The Critic Experience Bank: trajectories, labels and records in a database."""

from ceb_gym.bank.store import SqlBank

__all__ = ["SqlBank"]
