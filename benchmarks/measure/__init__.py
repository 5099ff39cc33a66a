"""Shared by the benchmarks: time and memory of the sides of a comparison, and result tables."""

from benchmarks.measure.losses import piece_losses
from benchmarks.measure.results import (
    RESULTS,
    compare,
    machine,
    row,
    save_results,
    time_and_memory,
    write_results,
)
from benchmarks.measure.sides import (
    arguments,
    interleaved,
    memory,
    peak_gigabytes,
    seconds,
    side,
    sides,
    synchronise,
)

__all__ = [
    "RESULTS",
    "arguments",
    "compare",
    "interleaved",
    "machine",
    "memory",
    "peak_gigabytes",
    "piece_losses",
    "row",
    "save_results",
    "seconds",
    "side",
    "sides",
    "synchronise",
    "time_and_memory",
    "write_results",
]
