from __future__ import annotations

from dataclasses import replace

import pytest

from sparsedp.audit.case import Case, run_cases
from sparsedp.audit.cases import steps
from sparsedp.runs import ALGORITHMS

CASES = {case.name: case for case in steps.cases()}
QUICK = ["EANA: noise on touched rows only", "lazy noise that is not flushed"]


def test_every_private_algorithm_has_a_step_that_is_audited() -> None:
    labels = {algorithm.label for algorithm in ALGORITHMS.values() if algorithm.private}
    assert {name.removesuffix(", one step") for name, case in CASES.items() if not case.is_control} == labels


@pytest.mark.parametrize("name", QUICK)
def test_faults_that_show_at_once_are_caught(name: str) -> None:
    (found,) = run_cases([CASES[name]], error=1e-4)
    assert found.is_refuted, str(found)


def test_a_right_step_is_not_refuted() -> None:
    """Errs with probability at most 1e-8. The same audit of a step with an eighth of the noise is not blind."""
    right = CASES["DP-FEST, one step"]
    (found,) = run_cases([right], error=1e-8, effort=0.125)
    assert not found.is_refuted, str(found)
    (found,) = run_cases([_with_noise(right, 0.125)], error=1e-4, effort=0.125)
    assert found.is_refuted, str(found)


def _with_noise(case: Case, share: float) -> Case:
    """A right form with a share of its noise, and the claim of all of it."""
    assert isinstance(case.statistics, steps.Steps)
    return replace(case, statistics=replace(case.statistics, sigma=share * steps.SIGMA))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_claims_stand_and_controls_fall(name: str) -> None:
    """The bounds of right forms are far below their claims: they would pass them with a probability below 1e-8."""
    (found,) = run_cases([CASES[name]], error=1e-4)
    assert found.is_expected, str(found)
    assert found.lower_bound > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.is_control])
def test_half_the_noise_in_a_right_form_is_caught(name: str) -> None:
    """The audit of each form has the power to refute it, and not only that of a control with another claim."""
    if name.startswith("sparse-vector"):
        pytest.skip("most of its claim is that of the selection, whose attack is the mechanism's own audit")
    (found,) = run_cases([_with_noise(CASES[name], 0.5)], error=1e-4)
    assert found.is_refuted, str(found)
