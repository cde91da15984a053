import math

import numpy as np
import pytest
from scipy import sparse

from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.audit.distinguishing import audit
from sparsedp.convex.clip import clip_rows
from sparsedp.convex.mean.measurement import CosineMeasurement, GaussianMeasurement
from sparsedp.convex.mean.recovery import (
    few_enough,
    measured_mean,
    measurement_bound,
    measurement_count,
    recover,
    recovery_error_bound,
    recovery_noise,
    recovery_radius,
)
from sparsedp.convex.noise import GaussianNoise
from sparsedp.randomness import NoiseSource


def test_how_many_measurements():
    assert measurement_count(1000, 10_000, 10, 0.5, 1e-5) == math.ceil(
        500 * math.sqrt(10 * math.log(1000) / math.log(1e5))
    )
    assert few_enough(100, math.ceil(100 * math.log(100) ** 2))
    assert not few_enough(100, math.floor(100 * math.log(100) ** 2) - 1)


def test_blocks_and_clipping_of_measured_rows():
    generator = np.random.default_rng(0)
    rows = sparse.csr_array(generator.standard_normal((600, 40)) * (generator.random((600, 40)) < 0.1))
    matrix = GaussianMeasurement(7, 40, NoiseSource(seed=1).sampling)
    measured = rows.toarray() @ matrix.columns(np.arange(40))
    bound = float(np.median(np.linalg.norm(measured, axis=1)))
    clipped = measured * np.minimum(
        1.0, bound / np.maximum(np.linalg.norm(measured, axis=1, keepdims=True), 1e-300)
    )
    assert np.allclose(measured_mean(rows, matrix, bound), clipped.mean(axis=0))


def _worst_pair(matrix, n):
    """A coordinate whose column is the longest, in one row, and its negative: more than 2L/n if not clipped."""
    lengths = np.linalg.norm(matrix.columns(np.arange(matrix.d)), axis=1)
    rows = np.zeros((n, matrix.d))
    rows[0, np.argmax(lengths)] = 1.0
    return [clip_rows(sparse.csr_array(x), l2=1.0) for x in (rows, -rows)], float(lengths.max())


@pytest.mark.parametrize("kind", [GaussianMeasurement, CosineMeasurement])
def test_sensitivity_in_measurement_space_whatever_the_matrix(kind):
    n, m = 5, 6
    bound = measurement_bound(m, 1.0)
    for seed in range(5):
        pair, longest = _worst_pair(kind(m, 300, NoiseSource(seed=seed).sampling), n)
        matrix = kind(m, 300, NoiseSource(seed=seed).sampling)
        moved = np.linalg.norm(measured_mean(pair[0], matrix, bound) - measured_mean(pair[1], matrix, bound))
        assert moved <= 2 * bound / n * (1 + 1e-12)
        assert moved == pytest.approx(2 / n * min(longest, bound))


def test_audit_and_the_papers_isometry_as_positive_control():
    """Few measurements: columns are much longer than 3/2, and noise for 3L/n without clipping is refuted."""
    n, m, d, epsilon, delta = 5, 3, 500, 1.0, 0.02
    matrix = GaussianMeasurement(m, d, NoiseSource(seed=2).sampling)
    pair, longest = _worst_pair(matrix, n)
    assert longest > 1.5
    bound = measurement_bound(m, 1.0)
    noise = recovery_noise(n, m, epsilon=epsilon, delta=delta, l2_bound=1.0)
    assert noise.std == 2 * bound / n * analytic_gaussian_sigma(epsilon, delta)
    direction = measured_mean(pair[0], matrix, 1e9)
    direction /= np.linalg.norm(direction)

    def released(noise, clip):
        def run(rows, stream, runs):
            mean = measured_mean(rows, matrix, clip)
            return noise.add(np.tile(mean, runs), stream).reshape(runs, m) @ direction

        return run

    arguments = {"runs": 200_000, "delta": delta, "claimed": epsilon, "stream": NoiseSource(seed=3).noise}
    right = audit(released(noise, bound), tuple(pair), **arguments)
    assert not right.refuted
    assert right.lower_bound > 0.7
    paper = GaussianNoise(3 / n * analytic_gaussian_sigma(epsilon, delta / 2))
    assert audit(released(paper, 1e9), tuple(pair), **arguments).refuted


@pytest.mark.parametrize("kind", [GaussianMeasurement, CosineMeasurement])
def test_sparse_means_are_recovered(kind):
    m, d, s = 120, 2000, 5
    source = NoiseSource(seed=4)
    matrix = kind(m, d, source.sampling)
    truth = np.zeros(d)
    truth[::400] = [0.5, -0.4, 0.3, 0.2, 0.4]
    exact = matrix.operator().matvec(truth)
    estimate = recover(matrix, exact, radius=1e-3, l2_bound=1.0)
    assert np.linalg.norm(estimate - truth) < 0.02
    noise = GaussianNoise(0.01)
    noisy = recover(matrix, noise.add(exact, source.noise), radius=noise.norm(m, 0.05), l2_bound=1.0)
    assert np.linalg.norm(noisy - truth) < 0.25
    assert s == np.count_nonzero(truth)


def test_zero_where_nothing_is_left_and_where_the_answer_is_too_long():
    matrix = GaussianMeasurement(20, 400, NoiseSource(seed=5).sampling)
    measured = matrix.operator().matvec(np.eye(400)[3])
    assert not recover(matrix, measured, radius=2.0, l2_bound=1.0).any()
    assert not recover(matrix, 5 * measured, radius=0.01, l2_bound=1.0).any()
    assert recover(matrix, measured, radius=0.01, l2_bound=1.0).any()


def test_error_bound_holds_and_follows_the_rate():
    """Rows on a few shared coordinates; the bound may fail in 1 of 20 runs and is loose."""
    n, d, s, epsilon, delta, beta = 400, 20_000, 2, 1.0, 1e-4, 0.05
    m = measurement_count(n, d, s, epsilon, delta)
    generator = np.random.default_rng(1)
    columns = np.sort(generator.integers(0, 10, (n, s)), axis=1)
    rows = sparse.csr_array(
        (np.full(n * s, 1 / math.sqrt(s)), columns.ravel(), np.arange(0, n * s + 1, s)), shape=(n, d)
    )
    rows.sum_duplicates()
    rows = clip_rows(rows, l2=1.0)
    truth = np.asarray(rows.mean(axis=0))
    noise = recovery_noise(n, m, epsilon=epsilon, delta=delta, l2_bound=1.0)
    radius = recovery_radius(noise, m, 1.0, beta=beta / 3)
    bound = recovery_error_bound(radius, m, d, s, 1.0, beta=beta / 3)
    assert bound < 3.0
    errors = []
    for seed in range(4):
        source = NoiseSource(seed=seed)
        matrix = CosineMeasurement(m, d, source.sampling)
        noisy = noise.add(measured_mean(rows, matrix, measurement_bound(m, 1.0)), source.noise)
        errors.append(np.linalg.norm(recover(matrix, noisy, radius=radius, l2_bound=1.0) - truth))
    assert max(errors) < bound
    # With m at its theorem's order, 16 times the examples halve the bound twice over (rate (eps n)^-1/2).
    larger = measurement_count(16 * n, d, s, epsilon, delta)
    noise = recovery_noise(16 * n, larger, epsilon=epsilon, delta=delta, l2_bound=1.0)
    radius = recovery_radius(noise, larger, 1.0, beta=beta / 3)
    assert recovery_error_bound(radius, larger, d, s, 1.0, beta=beta / 3) / bound == pytest.approx(
        1 / 4, rel=0.2
    )


def test_too_few_measurements_for_any_bound():
    assert recovery_error_bound(0.1, 3, 1000, 2, 2.0, beta=0.01) == 6.0
