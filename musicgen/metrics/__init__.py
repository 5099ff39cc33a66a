"""Formulas of measures, as pure functions of scores and arrays."""
