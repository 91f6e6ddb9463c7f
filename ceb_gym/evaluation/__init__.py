"""Evaluation: rollouts, metrics, intervals, reports."""
