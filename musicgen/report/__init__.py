"""Results for people: an HTML page about generated music, plots and tables."""

from musicgen.report.html import ReportPiece, render_report

__all__ = ["ReportPiece", "render_report"]
