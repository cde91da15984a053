from __future__ import annotations

import pytest

from sparsedp.audit.case import run_cases
from sparsedp.audit.cases import trainings
from sparsedp.runs import ALGORITHMS

CASES = {case.name: case for case in trainings.cases()}
ENDING = ", rare rows over a training"


def test_every_private_algorithm_has_a_training_that_is_audited() -> None:
    labels = {algorithm.label for algorithm in ALGORITHMS.values() if algorithm.private}
    named = {name.removesuffix(ENDING) for name, case in CASES.items() if not case.is_control}
    assert named - {"DP-FEST, private top-k"} == labels


@pytest.mark.parametrize("name", CASES)
def test_claims_stand_and_controls_fall(name: str) -> None:
    """To pass its claim, a right form would need nearly all guesses right: a probability below 1e-8."""
    (found,) = run_cases([CASES[name]], error=1e-4, effort=0.1)
    assert found.is_expected, str(found)


@pytest.mark.parametrize("name", [f"DP-SGD{ENDING}", f"DP-FEST, lazy noise{ENDING}", f"DP-AdaFEST{ENDING}"])
def test_an_attack_sees_something(name: str) -> None:
    (found,) = run_cases([CASES[name]], error=1e-4, effort=0.25)
    assert found.lower_bound > 0.15, str(found)
