"""Retrieval of precedents."""
