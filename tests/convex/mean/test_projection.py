import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from sparsedp.accounting import analytic_gaussian_delta
from sparsedp.audit.distinguishing import audit
from sparsedp.convex.clip import clip_rows, exact_mean
from sparsedp.convex.mean.projection import (
    mean_noise,
    project,
    projection_error_bound,
    pure_noise_error,
    shrink,
)
from sparsedp.convex.noise import GaussianNoise, LaplaceNoise
from sparsedp.mechanisms import project_l1_ball
from sparsedp.randomness import NoiseSource

L, N, S, D = 1.0, 10, 4, 6


def test_the_noise_is_the_specified_one():
    gaussian = mean_noise(N, epsilon=1.0, delta=1e-3, l2_bound=L, sparsity=S)
    assert isinstance(gaussian, GaussianNoise)
    assert analytic_gaussian_delta(1.0, 2 * L / N / gaussian.std) == pytest.approx(1e-3, rel=1e-6)
    pure = mean_noise(N, epsilon=0.5, delta=0.0, l2_bound=3.0, sparsity=S)
    assert pure == LaplaceNoise(2 * 3.0 * math.sqrt(S) / (N * 0.5))


def _means(rows_a, rows_b, l1):
    return [exact_mean(clip_rows(sparse.csr_array(r), l2=L, l1=l1), l2=L) for r in (rows_a, rows_b)]


@settings(deadline=None)
@given(
    arrays(np.float64, (N, D), elements=st.floats(-50, 50)),
    arrays(np.float64, D, elements=st.floats(-50, 50)),
)
def test_sensitivity_on_any_rows(rows, replacement):
    other = rows.copy()
    other[3] = replacement
    first, second = _means(rows, other, math.inf)
    assert np.linalg.norm(first - second) <= 2 * L / N * (1 + 1e-12)
    first, second = _means(rows, other, L * math.sqrt(S))
    assert np.abs(first - second).sum() <= 2 * L * math.sqrt(S) / N * (1 + 1e-12)


def _worst_pair(s):
    """Opposite rows of full norm on s coordinates: the largest move in l2 and in l1."""
    rows = np.zeros((N, D))
    rows[0, :s] = L / math.sqrt(s)
    return rows, -rows


@pytest.mark.parametrize("pure", [False, True])
def test_audit_of_the_noisy_mean_and_positive_controls(pure):
    """Sections 3 and 1: sensitivity 2L/n and not L/n; l1 sensitivity with sqrt(s)."""
    epsilon, delta = 1.0, 0.0 if pure else 0.02
    pair = _worst_pair(S)
    direction = np.sign(pair[0][0])
    noise = mean_noise(N, epsilon=epsilon, delta=delta, l2_bound=L, sparsity=S)

    def released(scale):
        def run(rows, stream, runs):
            mean = exact_mean(clip_rows(sparse.csr_array(rows), l2=L, l1=L * math.sqrt(S)), l2=L)
            return (
                type(noise)(noise.scale * scale).add(np.tile(mean, runs), stream).reshape(runs, -1)
                @ direction
            )

        return run

    arguments = {"runs": 200_000, "delta": delta, "claimed": epsilon, "stream": NoiseSource(seed=5).noise}
    right = audit(released(1.0), pair, **arguments)
    assert not right.refuted
    assert right.lower_bound > (0.4 if pure else 0.75)
    assert audit(released(0.5), pair, **arguments).refuted  # add/remove sensitivity used for replace-one
    if pure:
        assert audit(released(1 / math.sqrt(S)), pair, **arguments).refuted  # the l2 sensitivity used in l1


@settings(deadline=None)
@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(-5, 5)), st.floats(0.01, 30))
def test_projection_is_the_euclidean_one(noisy, radius):
    projected = project(noisy, radius)
    assert np.allclose(projected.point, project_l1_ball(noisy, radius), atol=1e-9)
    assert np.allclose(shrink(noisy, projected.threshold), projected.point, atol=1e-12)


def test_projection_to_a_ball_far_smaller_than_the_noise():
    noisy = np.array([5.0, 5.0, -5.0])
    assert np.abs(project(noisy, 1e-20).point).sum() <= 1e-15


def test_projection_of_many_coordinates():
    noisy = np.random.default_rng(0).standard_normal(200_000)
    assert np.allclose(project(noisy, 50.0).point, project_l1_ball(noisy, 50.0), atol=1e-9)


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("spread", [1, 40, 2000])
def test_error_bound_holds(pure, spread):
    """Means on the boundary of the ball, on few and on many coordinates; beta = 0.05, 300 runs each."""
    n, d, s, beta = 500, 2000, 4, 0.05
    mean = np.zeros(d)
    mean[:spread] = math.sqrt(s) / spread
    mean /= max(1.0, np.linalg.norm(mean))
    noise = mean_noise(n, epsilon=1.0, delta=0.0 if pure else 1e-6, l2_bound=1.0, sparsity=s)
    source = NoiseSource(seed=6)
    bound = projection_error_bound(noise, d, math.sqrt(s), beta=beta)
    misses = 0
    for _ in range(300):
        widest = project(noise.add(mean, source.noise), math.sqrt(s))
        misses += np.linalg.norm(widest.point - mean) > bound
        assert np.abs(widest.point).sum() <= math.sqrt(s) * (1 + 1e-9)
    assert misses <= 46  # 15 expected at most; more than 46 has probability 1e-9


@pytest.mark.parametrize("noise", [GaussianNoise(0.3), LaplaceNoise(0.2)], ids=repr)
@pytest.mark.parametrize(("d", "radius"), [(3, 50.0), (200, 5.0), (5000, 2.0), (20_000, 100.0), (4, 1e-6)])
def test_what_is_left_of_pure_noise(noise, d, radius):
    source = NoiseSource(seed=8)
    lengths = [
        np.linalg.norm(project(noise.add(np.zeros(d), source.noise), radius).point) for _ in range(200)
    ]
    assert pure_noise_error(noise, d, radius) == pytest.approx(np.mean(lengths), rel=0.25)
