"""Presentation of results: HTML pages with generated music, plots and tables."""

from musicgen.report.html import ReportPiece, render_report, verdict_section

__all__ = ["ReportPiece", "render_report", "verdict_section"]
