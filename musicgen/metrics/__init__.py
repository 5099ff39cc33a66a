"""Measures: pure functions of Scores and arrays."""

from musicgen.metrics.base import Summary, as_table, write_csv
from musicgen.metrics.ngram import InterpolatedTrigram
from musicgen.metrics.position_loss import (
    LossCurve,
    length_summaries,
    loss_curve,
    plot_loss_curves,
)
from musicgen.metrics.style import (
    chunked_style_similarity,
    style_profiles,
    style_similarity,
    track_similarities,
)

__all__ = [
    "InterpolatedTrigram",
    "LossCurve",
    "Summary",
    "as_table",
    "chunked_style_similarity",
    "length_summaries",
    "loss_curve",
    "plot_loss_curves",
    "style_profiles",
    "style_similarity",
    "track_similarities",
    "write_csv",
]
