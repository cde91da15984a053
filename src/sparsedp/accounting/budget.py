"""The error for a release that would exceed the budget."""

from __future__ import annotations


class BudgetExceeded(RuntimeError):
    """Raised *before* a release that would exceed the privacy budget; the refused call spent nothing."""
