"""The error of a budget that would be passed."""

from __future__ import annotations


class BudgetExceeded(RuntimeError):
    """Raised *before* a release that would pass the privacy budget; the refused call spent nothing."""
