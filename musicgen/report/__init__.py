"""Presentation of results: HTML pages with generated music, plots and tables."""

from musicgen.report.html import ReportPiece, render_report, verdict_section
from musicgen.report.payload import Mark

__all__ = ["Mark", "ReportPiece", "render_report", "verdict_section"]
