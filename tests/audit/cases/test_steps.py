from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparsedp.audit.case import Case, run_cases
from sparsedp.audit.cases import steps
from sparsedp.audit.faulty import QuietDense, QuietMap, QuietRows, RememberedReads
from sparsedp.randomness import Stream
from sparsedp.runs import ALGORITHMS

CASES = {case.name: case for case in steps.cases()}
PARTS: dict[str, dict[str, Any]] = {
    "DP-FEST, rows alone": {"fault": QuietRows},
    "DP-FEST, dense layers alone": {"fault": QuietDense},
    "DP-FEST, lazy noise, pending noise alone": {},
    "DP-AdaFEST, the map alone": {"selection": QuietMap},
    "DP-AdaFEST with memory, the map alone": {"selection": QuietMap},
    "DP-AdaFEST with memory, its rows alone": {"selection": RememberedReads},
}
"""Audits of one part of a step, and what puts a fault in that part alone."""
QUICK = ["EANA: noise on touched rows only", "lazy noise that is not flushed"]


def test_every_private_algorithm_has_a_step_that_is_audited() -> None:
    labels = {algorithm.label for algorithm in ALGORITHMS.values() if algorithm.private}
    one_step = {name for name, case in CASES.items() if not case.is_control} - PARTS.keys()
    assert {name.removesuffix(", one step") for name in one_step} == labels


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


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_fault_in_one_part_of_a_step_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the audit of the right form itself: half of the noise of that part, or a memory of what was read."""
    case, changes = CASES[name], dict(PARTS[name])
    assert isinstance(case.statistics, steps.Steps)
    if "selection" in changes:
        changes["selection"] = changes["selection"](**case.statistics.selection.parameters())
    if not changes:  # pending noise
        whole = Stream.normal
        monkeypatch.setattr(Stream, "normal", lambda stream, shape: 0.5 * whole(stream, shape))
    (found,) = run_cases([replace(case, statistics=replace(case.statistics, **changes))], error=1e-4)
    assert found.is_refuted, str(found)
