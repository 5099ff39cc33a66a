"""Measures: pure functions of Scores and arrays."""

from musicgen.metrics.base import CONFIDENCE, Summary, as_table, write_csv
from musicgen.metrics.kernel_plot import KernelDrawing, plot_kernels
from musicgen.metrics.ngram import InterpolatedTrigram
from musicgen.metrics.position_loss import (
    LossCurve,
    length_summaries,
    loss_curve,
    plot_loss_curves,
)
from musicgen.metrics.position_properties import (
    KernelProperties,
    kernel_properties,
    property_rows,
)
from musicgen.metrics.style import (
    chunked_style_similarity,
    style_profiles,
    style_similarity,
    track_similarities,
)

__all__ = [
    "CONFIDENCE",
    "InterpolatedTrigram",
    "KernelDrawing",
    "KernelProperties",
    "LossCurve",
    "Summary",
    "as_table",
    "chunked_style_similarity",
    "kernel_properties",
    "length_summaries",
    "loss_curve",
    "plot_kernels",
    "plot_loss_curves",
    "property_rows",
    "style_profiles",
    "style_similarity",
    "track_similarities",
    "write_csv",
]
