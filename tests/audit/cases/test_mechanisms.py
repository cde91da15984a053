from __future__ import annotations

from pathlib import Path

import pytest

import sparsedp.mechanisms
from sparsedp.audit.case import run_cases
from sparsedp.audit.cases import mechanisms, sums, turns

CASES = {case.name: case for case in mechanisms.cases()}
ONCE_A_CALL = [name for name, case in CASES.items() if case.runs <= 12_000 or "WIDE, Algorithm 4" in name]
NO_MECHANISMS = {
    *("Ball", "Box", "Domain", "Simplex", "project_l1_ball", "project_linf"),  # post-processing
    *("draw_repetitions", "draw_survivors", "threshold_for_false_positives"),  # parts of others
    *("gaussian_event", "laplace_event", "exponential_event", "sparse_vector_event"),
    *("thresholded_counts_event", "top_k_gaussian_event"),
}


def test_every_mechanism_is_audited() -> None:
    source = "".join(Path(str(room.__file__)).read_text() for room in (mechanisms, sums, turns))
    for name in set(sparsedp.mechanisms.__all__) - NO_MECHANISMS:
        assert f"{name}(" in source or f"{name}," in source, name


@pytest.mark.parametrize("name", [name for name in CASES if name not in ONCE_A_CALL])
def test_claims_stand_and_controls_fall(name: str) -> None:
    """Each errs with probability at most 1e-8."""
    (found,) = run_cases([CASES[name]], error=1e-8, effort=0.25)
    assert found.is_expected, str(found)
    assert found.lower_bound > 0.15, "an audit that sees nothing proves nothing"


def test_some_that_run_once_a_call() -> None:
    chosen = ["top-k, Gaussian", "top-k, Gaussian, a quarter of the noise", "numeric sparse"]
    for found in run_cases([CASES[name] for name in chosen], error=1e-8, effort=0.15):
        assert found.is_expected, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONCE_A_CALL)
def test_all_that_run_once_a_call(name: str) -> None:
    (found,) = run_cases([CASES[name]], error=1e-4 if CASES[name].is_control else 1e-8)
    assert found.is_expected, str(found)
