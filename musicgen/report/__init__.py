"""Presentation of results: HTML pages with generated music, plots and tables."""

from musicgen.report.html import render_report, verdict_section
from musicgen.report.pieces import Kept, ReportPiece

__all__ = ["Kept", "ReportPiece", "render_report", "verdict_section"]
