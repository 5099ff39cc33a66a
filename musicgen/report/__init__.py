"""One self-contained HTML page about generated music: piano roll, player, numbers."""

from musicgen.report.html import ReportPiece, render_report, write_report

__all__ = ["ReportPiece", "render_report", "write_report"]
