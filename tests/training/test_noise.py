"""The noise of several steps at once."""

from __future__ import annotations

import numpy as np
import pytest

from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection import DPSGD
from sparsedp.training.noise import Noise


def noise(sigma: float = 2.0, seed: int = 5) -> Noise:
    rule = DPSGD().rule(
        RowSpace((), (TableShape("table", 10, 2),)),
        noise_multiplier=sigma,
        max_grad_norm=3.0,
        expected_batch_size=4.0,
    )
    return Noise(rule, 20, NoiseSource(seed))


@pytest.mark.parametrize("steps", [1, 9])
def test_the_noise_of_steps_adds_up(steps: int) -> None:
    """Standard deviation ``sqrt(steps) * 6``, to 1%: that of one step, or of ``steps`` times one, fails."""
    made, sums = noise(), np.full((20_000, 2), 12.0)
    released = made.release_after(sums, steps) * 4.0
    assert abs(released.std() / (6.0 * np.sqrt(steps)) - 1.0) < 0.03
    assert abs(released.mean() - 12.0) < 0.3
    noised = made.noised_after(sums, steps)
    assert abs(noised.std() / (6.0 * np.sqrt(steps)) - 1.0) < 0.03
    assert (noised / made.lattice % 1.0 == 0.0).all()


def test_no_step_is_no_noise() -> None:
    sums = np.array([[0.5, -1.0]])
    assert (noise().release_after(sums, 0) == sums / 4.0).all()
    assert (noise().noised_after(sums, 0) == sums).all()
    assert (noise(0.0).release_after(sums, 3) == sums / 4.0).all()
    assert (noise(0.0).noised_after(sums, 3) == sums).all()
    assert (noise(0.0).on_lattice(sums) == sums).all()


def test_sums_are_rounded_to_whole_cells() -> None:
    made = noise()
    rounded = made.on_lattice(np.array([0.1, 1 / 3]))
    assert (rounded / made.lattice % 1.0 == 0.0).all()
    assert np.abs(rounded - [0.1, 1 / 3]).max() <= made.lattice / 2
