"""Results for people: HTML pages about generated music, plots and tables."""

from musicgen.report.html import ReportPiece, render_report
from musicgen.report.measures import Anchor, Measure
from musicgen.report.payload import Mark

__all__ = [
    "Anchor",
    "Mark",
    "Measure",
    "ReportPiece",
    "render_report",
]
