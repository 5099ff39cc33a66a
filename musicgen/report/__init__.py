"""Presentation of results: HTML pages with generated music, plots and tables."""

from musicgen.report.html import Kept, ReportPiece, render_report, verdict_section

__all__ = ["Kept", "ReportPiece", "render_report", "verdict_section"]
