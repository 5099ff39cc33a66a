"""Measures: pure functions of Scores and arrays."""

from musicgen.metrics.attention_invariance import invariance_rows
from musicgen.metrics.ngram import InterpolatedTrigram
from musicgen.metrics.position_loss import loss_curve
from musicgen.metrics.position_properties import kernel_properties
from musicgen.metrics.style import PROFILES, style_similarity
from musicgen.metrics.summary import Summary

__all__ = [
    "PROFILES",
    "InterpolatedTrigram",
    "Summary",
    "invariance_rows",
    "kernel_properties",
    "loss_curve",
    "style_similarity",
]
