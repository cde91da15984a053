import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparsedp.randomness import NoiseSource, Stream, add_gaussian, grid_of
from sparsedp.randomness.secure_gaussian import round_to_grid


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


@given(st.floats(1e-200, 1e200))
def test_the_grid_is_a_power_of_two_within_the_public_range(std: float) -> None:
    grid = grid_of(std)
    assert math.frexp(grid)[0] == 0.5
    assert 2.0**-20 <= grid / std <= 2.0**-12


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e12, 1e12), max_size=20),
    st.floats(1e-3, 1e3),
    st.integers(0, 2**32),
)
def test_results_lie_on_the_grid_whatever_the_data(values: list[float], std: float, seed: int) -> None:
    noisy = add_gaussian(values, std, stream(seed))
    assert noisy.dtype == np.float64
    steps = noisy / grid_of(std)
    assert np.array_equal(steps, np.rint(steps))


def finer_than(lattice: float, outputs: np.ndarray, radius: float) -> float:
    """How often an output lies near zero but off the lattice."""
    near = np.abs(outputs) < radius
    steps = outputs / lattice
    return float((near & (steps != np.rint(steps))).mean())


def test_plain_addition_gives_the_data_away_and_the_grid_does_not() -> None:
    """0 against C: near zero, C + noise reaches only multiples of C 2^-53, plain noise reaches more.

    The event never happens under C, so its probability under 0 is a lower bound on delta at every epsilon.
    """
    clip, noise = 1.0, stream(1).normal(100_000)
    lattice, radius = clip * 2.0**-53, clip / 2
    assert finer_than(lattice, clip + noise, radius) == 0.0
    assert finer_than(lattice, 0.0 + noise, radius) > 0.25
    grid = grid_of(clip)
    for value in (0.0, clip):
        noisy = add_gaussian(np.full(100_000, value), clip, stream(2))
        assert finer_than(grid, noisy, 100.0) == 0.0


def test_distribution_and_its_scale(uniform_on_unit: Callable[..., bool]) -> None:
    values = np.linspace(-5.0, 5.0, 1_000_000)
    noise = add_gaussian(values, 0.37, stream(3)) - values
    assert uniform_on_unit(stats.norm.cdf(noise / 0.37))
    assert not uniform_on_unit(stats.norm.cdf(noise / (0.37 * 1.01)))


def test_shapes_types_and_untouched_input() -> None:
    values = np.arange(6).reshape(2, 3)
    assert add_gaussian(values, 1.0, stream(4)).shape == (2, 3)
    assert np.array_equal(values, np.arange(6).reshape(2, 3))
    assert add_gaussian(1.5, 1.0, stream(4)).shape == ()
    assert add_gaussian([], 1.0, stream(4)).shape == (0,)


def test_values_far_beyond_the_noise_pass_through() -> None:
    assert add_gaussian([1e300, -1e300], 1e-100, stream(5)).tolist() == [1e300, -1e300]


@settings(deadline=None)
@given(st.lists(st.floats(-1e300, 1e300), max_size=10), st.integers(-60, 60))
def test_rounding_moves_by_half_a_step_at_most(values: list[float], exponent: int) -> None:
    grid, array = 2.0**exponent, np.array(values, dtype=np.float64)
    rounded = round_to_grid(array, grid)
    assert (np.abs(rounded - array) <= grid / 2).all()
    assert (np.remainder(rounded, grid) == 0.0).all()


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
def test_bad_deviations_are_named(std: float) -> None:
    with pytest.raises(ValueError, match=r"^std: must be"):
        grid_of(std)
    with pytest.raises(ValueError, match=r"^std: must be"):
        add_gaussian([1.0], std, stream(1))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_named(value: float) -> None:
    with pytest.raises(ValueError, match=r"^values: must be finite"):
        add_gaussian([0.0, value], 1.0, stream(1))


@pytest.mark.parametrize("grid", [0.0, -1.0, 3.0, math.nan, math.inf])
def test_bad_grids_are_named(grid: float) -> None:
    with pytest.raises(ValueError, match=r"^grid: must be a power of two"):
        round_to_grid(np.zeros(1), grid)
