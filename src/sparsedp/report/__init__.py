"""Figures and the HTML report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsedp.core.extras import lazy_names

_HOME = {
    "FinishedRun": "finished_run",
    "write_report": "run_report",
}

__all__ = ["FinishedRun", "write_report"]

if TYPE_CHECKING:
    from sparsedp.report.finished_run import FinishedRun
    from sparsedp.report.run_report import write_report

__getattr__ = lazy_names(__name__, _HOME)
