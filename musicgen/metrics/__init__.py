"""Measures: pure functions of Scores and arrays."""
