"""Audits of rows in turns: claims stand, and sums of several steps with the noise of one are caught."""

from __future__ import annotations

import pytest

from sparsedp.audit.case import run_cases
from sparsedp.audit.cases import turns

CASES = {case.name: case for case in turns.cases()}


@pytest.mark.parametrize("name", CASES)
def test_claims_stand_and_controls_fall(name: str) -> None:
    """Each errs with probability at most 1e-8."""
    (found,) = run_cases([CASES[name]], error=1e-8, effort=0.25)
    assert found.is_expected, str(found)
    assert found.lower_bound > 0.15, "an audit that sees nothing proves nothing"
