import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.optimize import brentq

from sparsedp.accounting import analytic_gaussian_delta, analytic_gaussian_sigma
from sparsedp.accounting.events import GaussianDpEvent, ZCDpEvent
from sparsedp.audit.distinguishing import audit, exact_epsilon
from sparsedp.mechanisms import (
    gaussian,
    gaussian_event,
    gaussian_on_grid,
    gaussian_on_grid_event,
    gaussian_std,
)
from sparsedp.mechanisms.grid import grid_integers
from sparsedp.randomness import grid_of

FALSE_ALARM = 1e-9


def test_noise_is_normal_of_the_stated_scale(stream):
    noise = gaussian(np.full(200_000, 5.0), std=3.0, stream=stream) - 5.0
    assert stats.kstest(noise, stats.norm(scale=3.0).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(noise, stats.norm(scale=3.1).cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e6 / 3])
def test_the_lattice_of_the_output_does_not_depend_on_the_data(value, stream):
    multiples = gaussian(np.full(1000, value), std=2.5, stream=stream) / grid_of(2.5)
    assert np.array_equal(multiples, np.rint(multiples))


def test_audit_and_that_it_notices_a_wrong_scale(stream):
    epsilon, delta = 1.0, 0.01
    std = gaussian_std(sensitivity=2.0, epsilon=epsilon, delta=delta)

    def mechanism(scale):
        return lambda value, stream, runs: gaussian(np.full(runs, value), std=scale, stream=stream)

    right = audit(mechanism(std), (2.0, 0.0), runs=2_000_000, delta=delta, claimed=epsilon, stream=stream)
    assert not right.refuted
    assert right.lower_bound > 0.85
    wrong = audit(
        mechanism(0.8 * std), (2.0, 0.0), runs=2_000_000, delta=delta, claimed=epsilon, stream=stream
    )
    assert wrong.refuted


def test_the_textbook_formula_wastes_and_then_fails():
    """sqrt(2 ln(1.25/delta)) / eps, as in WIDE's Lemma 3 and SGO's Fact 2.3, at delta = 1e-5."""
    delta = 1e-5

    def textbook(epsilon):
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon

    assert textbook(1.0) / analytic_gaussian_sigma(1.0, delta) == pytest.approx(1.30, abs=0.01)
    breaks = brentq(lambda epsilon: textbook(epsilon) - analytic_gaussian_sigma(epsilon, delta), 1.0, 20.0)
    assert breaks == pytest.approx(8.4, abs=0.1)
    assert analytic_gaussian_delta(10.0, 1 / textbook(10.0)) > 1.5 * delta


def test_std_and_event():
    std = gaussian_std(sensitivity=3.0, epsilon=0.7, delta=1e-6)
    assert gaussian_event(std=std, sensitivity=3.0) == GaussianDpEvent(std / 3.0)
    assert analytic_gaussian_delta(0.7, 3.0 / std) == pytest.approx(1e-6, rel=1e-6)


@given(
    arrays(np.float64, 6, elements=st.floats(-100, 100)),
    arrays(np.float64, 6, elements=st.floats(-3, 3)),
    st.sets(st.integers(0, 5)),
)
def test_rounding_to_a_grid_adds_at_most_its_share_to_the_sensitivity(x, move, moved):
    grid, mask = 0.25, np.isin(np.arange(6), list(moved))
    y = x + np.where(mask, move, 0.0)
    apart = grid * (grid_integers(y, grid=grid, scale=100.0) - grid_integers(x, grid=grid, scale=100.0))
    assert np.linalg.norm(apart) <= np.linalg.norm(y - x) + grid * math.sqrt(len(moved)) + 1e-9
    assert np.abs(apart).sum() <= np.abs(y - x).sum() + grid * len(moved) + 1e-9


def discrete_gaussian_pmf(shift, variance, reach):
    z = np.arange(-reach, reach + 1)
    weights = np.exp(-((z - shift) ** 2) / (2 * variance))
    return weights / weights.sum()


def test_on_grid_the_law_is_the_discrete_gaussian_exactly(stream, follows):
    std, grid = 0.64, 0.01
    draws = np.rint(
        gaussian_on_grid(np.full(40_000, 0.037), std=std, grid=grid, stream=stream) / grid
    ).astype(int)
    # 0.037 rounds to 4 grid steps; pool the integers in tens.
    reach = 500
    cells = (np.arange(-reach, reach + 1) + reach) // 10
    counts = np.bincount((draws + reach) // 10, minlength=cells[-1] + 1)
    assert follows(counts, np.bincount(cells, discrete_gaussian_pmf(4, (std / grid) ** 2, reach)))
    assert not follows(counts, np.bincount(cells, discrete_gaussian_pmf(4, (1.1 * std / grid) ** 2, reach)))


def test_on_grid_the_pair_costs_no_more_than_the_event_says():
    """Exact: a move by 1 may round to 101 steps of 0.01. rho-zCDP gives rho + 2 sqrt(rho ln(1/delta))."""
    std, grid, delta = 1.5, 0.01, 1e-3
    event = gaussian_on_grid_event(std=std, grid=grid, sensitivity=1.0, nonzeros=1)
    assert event == ZCDpEvent(0.5 * (1.01 / 1.5) ** 2)
    variance = (std / grid) ** 2
    pair = (discrete_gaussian_pmf(0, variance, 2000), discrete_gaussian_pmf(101, variance, 2000))
    assert exact_epsilon(*pair, delta=delta) <= event.rho + 2 * math.sqrt(event.rho * math.log(1 / delta))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_input(bad, stream):
    with pytest.raises(ValueError, match=r"^std "):
        gaussian([1.0], std=bad, stream=stream)
    with pytest.raises(ValueError, match=r"^sensitivity "):
        gaussian_std(sensitivity=bad, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match=r"^grid "):
        gaussian_on_grid([1.0], std=1.0, grid=bad, stream=stream)


def test_bad_values(stream):
    with pytest.raises(ValueError, match=r"^values "):
        gaussian([np.nan], std=1.0, stream=stream)
    with pytest.raises(ValueError, match=r"^grid must lie between"):
        gaussian_on_grid([1.0], std=1.0, grid=0.1, stream=stream)
    with pytest.raises(ValueError, match=r"^grid must leave"):
        gaussian_on_grid([1e300], std=1.0, grid=0.01, stream=stream)


def test_shapes_are_kept(stream):
    assert gaussian(np.zeros((2, 3)), std=1.0, stream=stream).shape == (2, 3)
    assert gaussian_on_grid(np.zeros((2, 3)), std=1.0, grid=0.01, stream=stream).shape == (2, 3)
    assert gaussian([], std=1.0, stream=stream).shape == (0,)
