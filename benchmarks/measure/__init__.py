"""Shared by the benchmarks: timing of sides in processes of their own, and result tables."""

from benchmarks.measure.results import RESULTS, machine, row, save_results
from benchmarks.measure.sides import arguments, peak_gigabytes, seconds, side, sides, synchronise

__all__ = [
    "RESULTS",
    "arguments",
    "machine",
    "peak_gigabytes",
    "row",
    "save_results",
    "seconds",
    "side",
    "sides",
    "synchronise",
]
