from __future__ import annotations

import pytest

from sparsedp.audit.case import run_cases
from sparsedp.runs import audited_releases

CASES = {case.name: case for case in audited_releases.cases()}


@pytest.mark.parametrize("name", CASES)
def test_claims_stand_and_controls_fall(name: str) -> None:
    """A right form is refuted with probability at most 1e-8."""
    (found,) = run_cases([CASES[name]], error=1e-4 if CASES[name].is_control else 1e-8, effort=0.3)
    assert found.is_expected, str(found)
    assert found.lower_bound > 0.15, "an audit that sees nothing proves nothing"


def test_every_release_has_a_right_form_and_half_of_its_noise_is_caught() -> None:
    for name in ("read shares", "calibration of the output", "score of a model"):
        assert not CASES[name].is_control
        assert CASES[f"{name}, half the noise"].is_control


def test_the_unit_of_a_claim_is_the_unit_that_is_left_out() -> None:
    for case in CASES.values():
        whole, rest = case.pair
        rows = {"example": 1, "user": audited_releases.ROWS}[case.claim().unit]
        assert len(whole) - len(rest) == rows
        assert len(set(whole.user) - set(rest.user)) == (rows > 1)
