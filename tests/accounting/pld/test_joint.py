import math

import numpy as np
import pytest

from sparsedp.accounting import analytic_gaussian_delta
from sparsedp.accounting.analytic_gaussian import log_analytic_gaussian_delta
from sparsedp.accounting.pld.bounded_range import BoundedRange
from sparsedp.accounting.pld.joint import joint
from sparsedp.accounting.pld.pairs import Gaussian, randomized_response


def delta(pair, epsilon):
    return float(np.maximum(pair.p - math.exp(epsilon) * pair.q, 0).sum() + pair.infinity)


def test_one_release_is_itself():
    assert joint([(Gaussian(0.3), 1)]) == Gaussian(0.3)


@pytest.mark.parametrize(
    "parts",
    [
        [(BoundedRange(0.5), 10), (Gaussian(0.7), 1)],
        [(BoundedRange(2.0), 1), (Gaussian(0.05), 1)],
        [(randomized_response(20.0), 1), (Gaussian(0.1), 1)],
        [(Gaussian(5.0), 1), (BoundedRange(0.01), 50)],
    ],
)
def test_masses_add_up_and_are_symmetric(parts):
    pair = joint(parts)
    assert pair.symmetric
    assert pair.p.sum() + pair.infinity == pytest.approx(1, abs=1e-9)
    assert pair.q.sum() + pair.minus_infinity == pytest.approx(1, abs=1e-9)
    # Rounding is felt in neither tail: P above a loss is Q below its opposite, down to 1e-45.
    above, below = np.cumsum(pair.p[::-1]), np.cumsum(pair.q)
    assert above[above > 1e-45] == pytest.approx(below[above > 1e-45], rel=1e-3)


def test_what_is_off_the_grids_is_infinite_loss():
    # Each of the 12 grids may leave 1e-60 of P, and of Q, off its ends; and so may the window of their sum.
    pair = joint([(Gaussian(0.3), 12)])
    assert 1e-60 < pair.infinity <= 13e-60
    assert 1e-60 < pair.minus_infinity <= 13e-60


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0, 9.0])
def test_two_gaussians_are_one(epsilon):
    exact = analytic_gaussian_delta(epsilon, 1.0)
    found = delta(joint([(Gaussian(0.6), 1), (Gaussian(0.8), 1)]), epsilon)
    assert exact <= found * (1 + 1e-9)
    assert found == pytest.approx(exact, rel=5e-3)  # at epsilon 9 it is 1e-18


def test_the_loss_of_draws_and_a_gaussian_by_quadrature():
    # Two draws: the sum has the density of a tilted triangle; with a Gaussian, a double integral.
    epsilon, mu, at = 0.8, 0.5, 0.9
    x = np.linspace(-2 * epsilon, 2 * epsilon, 4001)
    triangle = np.maximum(2 * epsilon - np.abs(x), 0) * np.exp(x / 2)
    triangle /= np.trapezoid(triangle, x)
    gaussian = np.array([math.exp(log_analytic_gaussian_delta(at - loss, mu)) for loss in x])
    exact = float(np.trapezoid(triangle * gaussian, x))
    assert delta(joint([(BoundedRange(epsilon), 2), (Gaussian(mu), 1)]), at) == pytest.approx(exact, rel=1e-3)
