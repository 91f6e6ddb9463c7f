"""The engine: one judgement, one episode, one commit, shared by all wrappers of a process."""
