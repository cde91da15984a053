import math

import mpmath
import pytest
from dp_accounting import get_sigma_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from sparsedp.accounting import (
    analytic_gaussian_delta,
    analytic_gaussian_epsilon,
    analytic_gaussian_sigma,
)
from sparsedp.accounting.analytic_gaussian import log_analytic_gaussian_delta

EPSILONS = [1e-3, 0.01, 0.1, 1.0, 10.0, 100.0]
DELTAS = [1e-300, 1e-100, 1e-30, 1e-10, 1e-5, 0.1, 0.9]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_sigma_delta_and_epsilon_invert_each_other(epsilon, delta):
    sigma = analytic_gaussian_sigma(epsilon, delta)
    assert analytic_gaussian_delta(epsilon, 1 / sigma) <= delta
    assert analytic_gaussian_delta(epsilon, 1 / sigma) == pytest.approx(delta, rel=1e-6)
    assert analytic_gaussian_epsilon(delta, 1 / sigma) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_agrees_with_dp_accounting(epsilon):
    assert analytic_gaussian_sigma(epsilon, 1e-5) == pytest.approx(
        get_sigma_gaussian(epsilon, 1e-5), rel=1e-8
    )


@pytest.mark.parametrize(("epsilon", "mu"), [(0.5, 0.3), (2.0, 1.0), (0.01, 0.05), (30.0, 5.0), (3.0, 40.0)])
def test_delta_is_the_hockey_stick_integral(epsilon, mu):
    def excess(z):
        return (math.exp(-((z - mu) ** 2) / 2) - math.exp(epsilon - z * z / 2)) / math.sqrt(2 * math.pi)

    start = epsilon / mu + mu / 2  # where the loss passes epsilon
    integral, _ = quad(excess, start, max(start, mu) + 12, epsabs=0, epsrel=1e-11, limit=400)
    assert analytic_gaussian_delta(epsilon, mu) == pytest.approx(integral, rel=1e-8)


@pytest.mark.parametrize("mu", [1e-300, 1e-100, 1e-30, 1e-17, 1e-12, 1e-8, 1e-4])
def test_delta_keeps_its_digits_where_it_hardly_is_one(mu):
    # At epsilon 0 it is 2 Phi(mu/2) - 1; subtracting the two terms would leave nothing of it.
    assert analytic_gaussian_delta(0.0, mu) == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-9)
    with mpmath.workdps(60):
        exact = mpmath.ncdf(mpmath.mpf(-0.5) * mu) - mpmath.exp(mpmath.mpf(mu) * mu) * mpmath.ncdf(
            -1.5 * mpmath.mpf(mu)
        )
    assert analytic_gaussian_delta(mu * mu, mu) == pytest.approx(float(exact), rel=1e-9)


@given(epsilon=st.floats(0, 50), mu=st.floats(1e-4, 20), factor=st.floats(1.01, 3))
@settings(max_examples=200, deadline=None)
def test_delta_falls_with_epsilon_and_rises_with_mu(epsilon, mu, factor):
    here = log_analytic_gaussian_delta(epsilon, mu)
    assert log_analytic_gaussian_delta(epsilon * factor + 1e-3, mu) < here or here == -math.inf
    # Close to 1 both round to the same float.
    assert log_analytic_gaussian_delta(epsilon, mu * factor) >= here


@given(epsilon=st.floats(-20, -0.01), mu=st.floats(0.05, 10))
@settings(max_examples=100, deadline=None)
def test_negative_epsilons_are_the_other_direction(epsilon, mu):
    # delta(-e) = 1 - e^-e (1 - delta(e)) for a symmetric pair.
    mirrored = 1 - math.exp(epsilon) * (1 - math.exp(log_analytic_gaussian_delta(-epsilon, mu)))
    assert math.exp(log_analytic_gaussian_delta(epsilon, mu)) == pytest.approx(mirrored, rel=1e-9, abs=1e-12)


def test_shifts_that_no_float_can_square():
    assert analytic_gaussian_epsilon(1e-6, 1e140) == pytest.approx(5e279, rel=1e-9)
    assert analytic_gaussian_epsilon(1e-6, 1e200) == math.inf
    assert analytic_gaussian_delta(1.0, 1e200) == 1
    assert analytic_gaussian_delta(1e300, 1e-200) == 0


def test_no_noise_is_needed_for_no_information():
    assert analytic_gaussian_delta(1.0, 0.0) == 0
    assert analytic_gaussian_epsilon(1e-9, 0.0) == 0
    assert analytic_gaussian_epsilon(0.5, 0.1) == 0  # total variation 0.04 is below delta


def test_the_classical_formula_wastes_noise_and_is_wrong_for_large_epsilon():
    def classical(epsilon, delta=1e-5):
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon

    assert 1.25 < classical(1.0) / analytic_gaussian_sigma(1.0, 1e-5) < 1.31
    assert classical(8.3) > analytic_gaussian_sigma(8.3, 1e-5)
    assert classical(8.5) < analytic_gaussian_sigma(8.5, 1e-5)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: analytic_gaussian_sigma(-1, 1e-5), "epsilon"),
        (lambda: analytic_gaussian_sigma(math.nan, 1e-5), "epsilon"),
        (lambda: analytic_gaussian_sigma(1, 0), "delta"),
        (lambda: analytic_gaussian_sigma(1, 1), "delta"),
        (lambda: analytic_gaussian_epsilon(1e-5, -1), "mu"),
        (lambda: analytic_gaussian_epsilon(2, 1), "delta"),
        (lambda: analytic_gaussian_delta(math.inf, 1), "epsilon"),
        (lambda: analytic_gaussian_sigma(1.7e308, 1e-5), "epsilon"),
        (lambda: analytic_gaussian_sigma(0, 5e-324), "delta"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        call()
