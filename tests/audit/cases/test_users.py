from __future__ import annotations

import pytest

from sparsedp.audit.case import run_cases
from sparsedp.audit.cases import users

CASES = {case.name: case for case in users.cases()}


@pytest.mark.parametrize("name", CASES)
def test_claims_stand_and_controls_fall(name: str) -> None:
    """To pass its claim, a right form would need nearly all guesses right: a probability below 1e-8."""
    (found,) = run_cases([CASES[name]], error=1e-4, effort=0.3)
    assert found.is_expected, str(found)


def test_the_unit_is_the_user_where_users_are_protected() -> None:
    found = list(run_cases([case for case in CASES.values() if not case.is_control], effort=0.1))
    assert {finding.claim.unit for finding in found} == {"user"}
