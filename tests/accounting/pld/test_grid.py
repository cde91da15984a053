"""Discretised pairs dominate: their delta is never below the exact one, in either direction, and close to it."""

import math

import numpy as np
import pytest
from support.closed_forms import bounded_range_delta

from sparsedp.accounting import analytic_gaussian_delta
from sparsedp.accounting.pld.bounded_range import BoundedRange
from sparsedp.accounting.pld.grid import GridLoss, discretise
from sparsedp.accounting.pld.pairs import Gaussian, randomized_response
from sparsedp.accounting.pld.sampling import PoissonSampled


def delta(loss, epsilon):
    return float(np.maximum(loss.p - math.exp(epsilon) * loss.q, 0).sum() + loss.infinity)


def sampled_gaussian_delta(epsilon, mu, rate):
    return rate * analytic_gaussian_delta(math.log1p(math.expm1(epsilon) / rate), mu)


EXACT = [
    (Gaussian(1.0), lambda e: analytic_gaussian_delta(e, 1.0)),
    (BoundedRange(2.0), lambda e: bounded_range_delta(e, 2.0)),
    (PoissonSampled(Gaussian(1.0), 0.1), lambda e: sampled_gaussian_delta(e, 1.0, 0.1)),
    (randomized_response(1.0), lambda e: max(0.0, 1 / (1 + math.exp(-1)) - math.exp(e) / (1 + math.e))),
]


@pytest.mark.parametrize(("pair", "exact"), EXACT)
@pytest.mark.parametrize("step", [0.3, 0.05, 2**-8])
def test_never_below_the_exact_curve_and_equal_on_the_grid(pair, exact, step):
    loss = discretise(pair, step, 1e-12)
    for epsilon in np.linspace(0, 1.9, 41):
        assert delta(loss, epsilon) >= exact(epsilon) - 1e-12
    for epsilon in step * np.arange(0, int(0.9 / step) + 1):
        assert delta(loss, epsilon) == pytest.approx(exact(epsilon), rel=1e-6, abs=2e-12)


@pytest.mark.parametrize("step", [0.3, 2**-8])
def test_reversal_dominates_the_add_direction(step):
    # delta of (Q, P) from that of (P, Q): 1 - e^e (1 - delta(-e)); for e below -ln(1 - rate), where it is not zero.
    rate, mu = 0.5, 1.0
    loss = discretise(PoissonSampled(Gaussian(mu), rate), step, 1e-12).reversed()
    for epsilon in np.linspace(0, 0.6, 13):
        inner = math.log1p(math.expm1(-epsilon) / rate)
        at_minus = rate * (1 - math.exp(inner) * (1 - analytic_gaussian_delta(-inner, mu)))
        exact = 1 - math.exp(epsilon) * (1 - at_minus)
        assert delta(loss, epsilon) >= exact - 1e-12
        assert delta(loss, epsilon) <= exact + step**2


def test_masses_add_up_whatever_the_grid():
    for step in (1e-5, 1e-2, 10.0):
        loss = discretise(PoissonSampled(Gaussian(1.0), 1e-4), step, 1e-9)
        assert loss.p.sum() + loss.infinity == pytest.approx(1, abs=1e-12)
        assert loss.q.sum() + loss.minus_infinity == pytest.approx(1, abs=1e-12)


def test_masses_add_up_when_much_is_beyond_the_ends():
    for pair in (Gaussian(1.0), PoissonSampled(Gaussian(2.0), 0.3)):
        loss = discretise(pair, 0.1, 0.05)
        assert loss.p.sum() + loss.infinity == pytest.approx(1, abs=1e-12)
        assert loss.q.sum() + loss.minus_infinity == pytest.approx(1, abs=1e-12)


def test_reversal_exchanges_the_infinities():
    loss = GridLoss(0.5, -1, np.array([0.2, 0.5]), np.array([0.1, 0.6]), 0.3, 0.25).reversed()
    assert (loss.infinity, loss.minus_infinity) == (0.25, 0.3)
    assert loss.losses.tolist() == [0.0, 0.5]
    assert loss.p.tolist() == [0.6, 0.1]
    assert loss.q.tolist() == [0.5, 0.2]


def test_unplaced_mass_is_bounded():
    loss = discretise(Gaussian(1.0), 0.01, 1e-6)
    assert 0 < loss.infinity <= 1e-6
    assert 0 < loss.minus_infinity <= 1e-6


class Understated:
    """A Gaussian whose cells are wrong: it says half of each loss."""

    symmetric = True

    def cells(self, edges):
        return Gaussian(1.0).cells(2 * edges)

    def span(self, tail):
        low, high = Gaussian(1.0).span(tail)
        return low / 2, high / 2


@pytest.mark.parametrize("step", [0.3, 2**-8])
def test_cells_that_understate_their_losses_cost_more_and_not_less(step):
    loss = discretise(Understated(), step, 1e-12)
    for epsilon in np.linspace(0, 5, 11):
        assert delta(loss, epsilon) >= analytic_gaussian_delta(epsilon, 1.0)
        assert delta(loss.reversed(), epsilon) >= analytic_gaussian_delta(epsilon, 1.0)


@pytest.mark.parametrize("mu", [1e-6, 0.3, 8.0, 30.0, 300.0])
def test_right_cells_lose_nothing(mu):
    low, high = Gaussian(mu).span(1e-20)
    loss = discretise(Gaussian(mu), (high - low) / 5000, 1e-20)
    assert loss.infinity <= 1e-20
    assert np.isfinite(loss.q).all()
    assert loss.p.sum() == pytest.approx(1, abs=1e-9)


class Lossy:
    """A Gaussian with a mass that is not there: zero or undefined in the cells of the largest losses."""

    symmetric = True

    def __init__(self, mass):
        self.mass = mass

    def cells(self, edges):
        p, q = Gaussian(1.0).cells(edges)
        return (np.where(np.append(edges, np.inf) > 1, self.mass, masses) for masses in (p, q))

    def span(self, tail):
        return Gaussian(1.0).span(tail)


@pytest.mark.parametrize("mass", [0.0, math.nan])
def test_cells_that_lose_mass_cost_more_and_not_less(mass):
    loss = discretise(Lossy(mass), 2**-6, 1e-12)
    for epsilon in np.linspace(0, 5, 11):
        assert delta(loss, epsilon) >= analytic_gaussian_delta(epsilon, 1.0)
        assert delta(loss.reversed(), epsilon) >= analytic_gaussian_delta(epsilon, 1.0)
    assert 0.3 < loss.infinity < 0.4  # P(loss > 1)


def test_a_pair_without_a_single_mass_protects_nothing():
    class Undefined(Lossy):
        def cells(self, edges):
            return np.full((2, len(edges) + 1), math.nan)

    loss = discretise(Undefined(math.nan), 0.1, 1e-9)
    assert (loss.infinity, loss.minus_infinity) == (1, 1)
