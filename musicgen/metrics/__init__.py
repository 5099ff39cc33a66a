"""Measures: pure functions of Scores and arrays."""

from musicgen.metrics.attention_invariance import (
    by_offset,
    invariance_rows,
    monotonicity,
    translation_invariance,
)
from musicgen.metrics.ngram import InterpolatedTrigram
from musicgen.metrics.position_loss import (
    LossCurve,
    LossSummary,
    length_summaries,
    loss_curve,
    mean_prediction_losses,
    unit_summary,
)
from musicgen.metrics.position_properties import kernel_properties, property_rows
from musicgen.metrics.style import PROFILES, chunked_style_similarity, style_similarity
from musicgen.metrics.summary import CONFIDENCE, Summary

__all__ = [
    "CONFIDENCE",
    "PROFILES",
    "InterpolatedTrigram",
    "LossCurve",
    "LossSummary",
    "Summary",
    "by_offset",
    "chunked_style_similarity",
    "invariance_rows",
    "kernel_properties",
    "length_summaries",
    "loss_curve",
    "mean_prediction_losses",
    "monotonicity",
    "property_rows",
    "style_similarity",
    "translation_invariance",
    "unit_summary",
]
