"""Chernoff bounds are bounds, at every size of loss, and not far from the exact curve."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from sparsedp.accounting import analytic_gaussian_delta, analytic_gaussian_epsilon
from sparsedp.accounting.pld.chernoff import chernoff_delta, chernoff_deltas, chernoff_epsilon
from sparsedp.accounting.pld.pairs import Gaussian, published_with, randomized_response
from sparsedp.accounting.pld.sampling import PoissonSampled
from sparsedp.accounting.pld.shifted_gaussians import gaussian_mixture


@pytest.mark.parametrize("delta", [1e-30, 1e-6, 0.1])
@pytest.mark.parametrize("mu", [1e-3, 1.0, 30.0, 1e3, 4e4])
def test_a_gaussian_is_bounded_closely(mu, delta):
    exact = analytic_gaussian_epsilon(delta, mu)
    # K(t) = t (t + 1) mu^2 / 2: the least over t is at mu^2 / 2 + mu sqrt(2 ln(1/delta)).
    ideal = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    found = chernoff_epsilon([(Gaussian(mu), 1)], False, delta)
    assert exact <= found <= 1.01 * ideal


@pytest.mark.parametrize(("mu", "epsilon"), [(1.0, 4.0), (0.1, 0.3), (50.0, 1400.0)])
def test_the_delta_of_a_gaussian_is_bounded(mu, epsilon):
    found = chernoff_delta([(Gaussian(mu), 1)], False, epsilon)
    assert analytic_gaussian_delta(epsilon, mu) <= found
    assert found <= 2 * math.exp(-((epsilon / mu - mu / 2) ** 2) / 2)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_trillion_small_steps_are_one_gaussian(reverse):
    steps = [(gaussian_mixture(1e6, (1.0,), (1.0,)), 10**12)]
    exact, ideal = analytic_gaussian_epsilon(1e-6, 1.0), 0.5 + math.sqrt(2 * math.log(1e6))
    assert exact <= chernoff_epsilon(steps, reverse, 1e-6) <= 1.01 * ideal


@pytest.mark.parametrize("epsilon", [0.1, 30.0, 800.0, 1e6, 1e9])
def test_pure_losses_of_any_size(epsilon):
    pairs = [(randomized_response(epsilon), 3)]
    assert 3 * epsilon - 1 <= chernoff_epsilon(pairs, False, 1e-9) <= 3 * epsilon * (1 + 1e-3)
    assert chernoff_delta(pairs, False, 3.01 * epsilon) < 1e-9


def test_both_directions_of_a_sampled_gaussian():
    pair, q = PoissonSampled(Gaussian(2.0), 0.1), 0.1
    found = chernoff_epsilon([(pair, 1)], False, 1e-6)
    x = 1 + math.log1p(math.expm1(found) / q) / 2  # where the loss is what was found
    mixed = q * norm.sf(x - 2) + (1 - q) * norm.sf(x)
    assert 1e-8 < mixed - math.exp(found) * norm.sf(x) <= 1e-6
    # Reversed, no loss is larger than -ln(1 - q).
    assert 0.08 < chernoff_epsilon([(pair, 1)], True, 1e-6) <= 1.03 * -math.log1p(-q)


def test_mass_at_infinite_loss_is_not_lost():
    pairs = [(published_with(1e-3), 2), (Gaussian(0.1), 1)]
    assert chernoff_epsilon(pairs, False, 1.9e-3) == math.inf
    assert chernoff_epsilon(pairs, False, 2.1e-3) < 2
    assert 2e-3 <= chernoff_delta(pairs, False, 5.0) < 2.01e-3


def test_many_deltas_at_once_are_those_of_one_at_a_time():
    pairs = [(PoissonSampled(Gaussian(1.0), 0.1), 20)]
    epsilons = np.array([0.0, 0.5, 3.0])
    found = chernoff_deltas(pairs, True, epsilons)
    assert found == pytest.approx([chernoff_delta(pairs, True, epsilon) for epsilon in epsilons])
    assert np.all(np.diff(found) <= 0)
