"""The Critic Experience Bank: trajectories, labels and records in a database."""
