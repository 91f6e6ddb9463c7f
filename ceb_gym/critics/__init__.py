"""Critics: what gives a confidence to a proposed action."""
