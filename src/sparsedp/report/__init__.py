"""Figures and the HTML report."""

from sparsedp.report.run_report import FinishedRun, write_report

__all__ = ["FinishedRun", "write_report"]
