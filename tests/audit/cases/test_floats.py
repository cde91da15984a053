from __future__ import annotations

import numpy as np
import pytest

from sparsedp.audit.case import run_cases
from sparsedp.audit.cases import floats
from sparsedp.randomness import NoiseSource

CASES = {case.name: case for case in floats.cases()}


@pytest.mark.parametrize("name", CASES)
def test_attacks_fail_on_the_lattice_and_succeed_on_floats(name: str) -> None:
    """Errs with probability at most 1e-8 on the library's noise."""
    (found,) = run_cases([CASES[name]], error=1e-4 if CASES[name].is_control else 1e-8, effort=0.4)
    assert found.is_expected, str(found)


def test_broken_forms_are_gaussian_but_for_their_low_bits() -> None:
    """Mean and deviation of 100,000 draws, within six standard errors."""
    for noisy in (
        lambda *a: floats.box_muller(24, *a),
        floats.added_doubles,
        floats.released,
        floats.mechanism,
    ):
        values = noisy(np.full(100_000, 3.0), NoiseSource(1).noise)
        assert abs(values.mean() - 3.0) < 0.02
        assert abs(values.std() - 1.0) < 0.015


def test_anyones_noise_can_be_attacked() -> None:
    own = floats.attacks(
        "my noise", lambda sums, stream: sums + np.round(floats.added_doubles(0 * sums, stream), 3)
    )
    assert [case.name for case in own] == ["my noise: lattice", "my noise: rings", "my noise: tail"]
    assert not any(case.is_control for case in own)
