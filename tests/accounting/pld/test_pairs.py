"""Cells hold the right masses, to relative precision, and make a pair: P-mass over Q-mass stays within the cell's losses."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from sparsedp.accounting.pld.bounded_range import BoundedRange, laplace
from sparsedp.accounting.pld.pairs import (
    Gaussian,
    Weighted,
    bucket_response,
    discrete_laplace,
    normal_cells,
    normal_quantile,
    published_with,
    randomized_response,
)
from sparsedp.accounting.pld.sampling import PoissonSampled
from sparsedp.accounting.pld.shifted_gaussians import (
    SampledReplacement,
    gaussian_mixture,
    truncated_poisson_gaussian,
)

PAIRS = {
    "gaussian": Gaussian(0.7),
    "sharp gaussian": Gaussian(8.0),
    "bounded range": BoundedRange(0.6),
    "laplace": laplace(0.9),
    "randomized response": randomized_response(1.3),
    "buckets": bucket_response(0.3, 7),
    "discrete laplace": discrete_laplace(0.4, 3),
    "weighted": Weighted(0.2, Gaussian(1.0), randomized_response(0.5)),
    "sampled gaussian": PoissonSampled(Gaussian(1.0), 0.01),
    "sampled laplace": PoissonSampled(laplace(2.0), 0.1),
    "twice sampled": PoissonSampled(PoissonSampled(Gaussian(2.0), 0.5), 0.1),
    "mixture": gaussian_mixture(1.5, [0, 1, 2, 3], [0.7, 0.2, 0.05, 0.05]),
    "mixture without zero": gaussian_mixture(1.0, [1, 2], [0.6, 0.4]),
    "replacement": SampledReplacement(1.0, 0.3),
    "certain replacement": SampledReplacement(1.0, 1.0),
    "truncated": truncated_poisson_gaussian(1000, 0.1, 110, 1.0),
}
EXTREME = {
    "faint gaussian": Gaussian(1e-6),
    "far gaussian": Gaussian(25.0),
    "faint bounded range": BoundedRange(1e-6),
    "wide bounded range": BoundedRange(300.0),
    "wide laplace": laplace(300.0),
    "rarely sampled gaussian": PoissonSampled(Gaussian(1.0), 1e-9),
    "rarely sampled far gaussian": PoissonSampled(Gaussian(20.0), 1e-9),
    "almost always sampled": PoissonSampled(Gaussian(1.0), 1 - 1e-9),
    "sampled wide laplace": PoissonSampled(laplace(300.0), 0.5),
    "mixture with a rare far shift": gaussian_mixture(1.0, [0, 1, 20], [0.9, 0.1 - 1e-30, 1e-30]),
    "mixture of a million rows": gaussian_mixture(1e3, range(0, 2000, 2), binom.pmf(range(1000), 999, 0.5)),
    "rare replacement": SampledReplacement(5.0, 1e-9),
    "far replacement": SampledReplacement(20.0, 0.3),
}


@pytest.mark.parametrize("name", EXTREME)
def test_cells_hold_the_losses_they_claim_at_extreme_parameters(name):
    pair = EXTREME[name]
    low, high = pair.span(1e-30)
    edges = np.linspace(low, high, 5001)
    p, q = pair.cells(edges)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert q.sum() == pytest.approx(1, abs=1e-12)
    inner = (p[1:-1] > 1e-200) & (q[1:-1] > 1e-200)
    loss = np.log(p[1:-1][inner]) - np.log(q[1:-1][inner])
    slack = 1e-9 * max(-low, high)
    assert np.all(loss >= edges[:-1][inner] - slack)
    assert np.all(loss <= edges[1:][inner] + slack)


def test_a_published_record_is_a_pair():
    pair = published_with(0.2)
    p, q = pair.cells(np.array([-1.0, 0.0]))
    assert p.tolist() == pytest.approx([0.0, 0.8, 0.2])
    assert q.tolist() == pytest.approx([0.0, 1.0, 0.0])
    assert pair.losses == pytest.approx([math.log(0.8)])


@pytest.mark.parametrize("name", PAIRS)
def test_cells_are_distributions_with_the_losses_they_claim(name):
    pair = PAIRS[name]
    low, high = pair.span(1e-15)
    edges = np.linspace(low - 0.1, high + 0.1, 1001)
    p, q = pair.cells(edges)
    assert len(p) == len(q) == len(edges) + 1
    assert p.min() >= 0
    assert q.min() >= 0
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert q.sum() == pytest.approx(1, abs=1e-12)
    assert p[-1] <= 1e-15 * (1 + 1e-6)
    assert q[0] <= 1e-15 * (1 + 1e-6)
    inner = (p[1:-1] > 1e-200) & (q[1:-1] > 1e-200)
    loss = np.log(p[1:-1][inner] / q[1:-1][inner])
    assert np.all(loss >= edges[:-1][inner] - 1e-9)
    assert np.all(loss <= edges[1:][inner] + 1e-9)


@pytest.mark.parametrize("name", PAIRS)
def test_symmetric_pairs_are_symmetric(name):
    pair = PAIRS[name]
    low, high = pair.span(1e-12)
    edges = np.linspace(-max(high, -low) - 0.0123, max(high, -low) + 0.0123, 400)
    p, q = pair.cells(edges)
    assert np.allclose(p, q[::-1], rtol=1e-9, atol=1e-15) == pair.symmetric


@pytest.mark.parametrize("name", PAIRS)
def test_sketches_lie_in_the_span(name):
    pair = PAIRS[name]
    edges = pair.sketch(1e-20)
    low, high = pair.span(1e-20)
    assert np.all(np.diff(edges) > 0)
    assert len(edges) <= 8000
    assert edges[0] >= low - 1e-9
    assert edges[-1] <= high + 1e-9


def test_normal_cells_keep_their_digits_in_tails_and_in_narrow_cells():
    # ncdf(30) is 1 - 1e-198: the reference needs more digits than that.
    for z in (
        np.array([30.0, 30.0001, 30.5, 33.0]),
        np.array([-33.0, -30.0, -0.2, 0.3]),
        1 + 1e-7 * np.arange(3),
    ):
        with mpmath.workdps(300):
            exact = [
                float(mpmath.ncdf(b) - mpmath.ncdf(a)) for a, b in itertools.pairwise(map(mpmath.mpf, z))
            ]
        assert normal_cells(z)[1:-1] == pytest.approx(exact, rel=1e-9)


def test_normal_quantile():
    assert normal_quantile(0.5) == 0
    assert normal_quantile(0.9) == 0
    assert normal_quantile(1e-200) == pytest.approx(30.20559, rel=1e-5)


def test_discrete_laplace_masses_come_from_its_definition():
    parameter, sensitivity = 0.4, 3
    x = np.arange(-200, 200)
    p = math.tanh(parameter / 2) * np.exp(-parameter * np.abs(x - sensitivity))
    q = math.tanh(parameter / 2) * np.exp(-parameter * np.abs(x))
    pair = discrete_laplace(parameter, sensitivity)
    for epsilon in (0.0, 0.3, 0.7, 1.1):
        direct = np.maximum(p - math.exp(epsilon) * q, 0).sum()
        assert np.maximum(pair.p - math.exp(epsilon) * pair.q, 0).sum() == pytest.approx(direct, rel=1e-9)
