"""Summarizers: observations and actions as compact text."""
