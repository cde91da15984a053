"""The list of audits that the library runs on itself, and the known-bad forms that they must refute."""

from __future__ import annotations

from sparsedp.audit.case import Auditable
from sparsedp.audit.cases import epochs, floats, mechanisms, steps, sums, trainings, turns, users

__all__ = ["library_cases"]


def library_cases() -> list[Auditable]:
    """Every audit of mechanisms, steps, trainings, users and noise sources."""
    rooms = (mechanisms, sums, turns, steps, epochs, trainings, users, floats)
    return [case for room in rooms for case in room.cases()]
