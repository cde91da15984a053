import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sparsedp.convex.erm.domains import Ball, Box, Simplex, Unconstrained, euclidean_nearest, largest_norm

vectors = arrays(np.float64, 5, elements=st.floats(-10, 10))
DOMAINS = [
    Box(-0.5, 2.0),
    Box(np.arange(5.0) - 3, np.arange(5.0)),
    Ball(1.5),
    Ball(0.5, np.ones(5)),
    Simplex(2.0),
]


def inside(domain, x):
    if isinstance(domain, Box):
        return np.all(x >= np.asarray(domain.low) - 1e-9) and np.all(x <= np.asarray(domain.high) + 1e-9)
    if isinstance(domain, Ball):
        return np.linalg.norm(x - domain.center) <= domain.radius + 1e-9
    return x.min() >= -1e-9 and abs(x.sum() - domain.total) < 1e-9


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@settings(deadline=None)
@given(x=vectors, y=vectors)
def test_the_nearest_point_by_its_variational_inequality(domain, x, y):
    """p is the nearest point of x iff <x - p, q - p> <= 0 for every q of the set."""
    p, q = euclidean_nearest(domain, x), euclidean_nearest(domain, y)
    assert inside(domain, p)
    assert (x - p) @ (q - p) <= 1e-8
    assert np.allclose(euclidean_nearest(domain, p), p)
    assert np.linalg.norm(p) <= largest_norm(domain, 5) + 1e-9
    assert inside(domain, domain.linf_nearest(x))


def test_largest_norms():
    assert largest_norm(Unconstrained(), 5) == math.inf
    assert largest_norm(Ball(2.0, 1.0), 4) == 4.0
    assert largest_norm(Box(-1.0, 2.0), 4) == 4.0
    assert largest_norm(Simplex(3.0), 4) == 3.0
    x = np.arange(3.0)
    assert np.array_equal(Unconstrained().linf_nearest(x), x)
    assert np.array_equal(euclidean_nearest(Unconstrained(), x), x)


def test_not_a_domain():
    with pytest.raises(TypeError, match="domain must be"):
        euclidean_nearest("ball", np.zeros(2))
