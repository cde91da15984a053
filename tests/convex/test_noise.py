import math

import numpy as np
import pytest
from scipy import stats
from support.closed_forms import threshold_risk

from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.convex.mean.projection import ball_risk, project
from sparsedp.convex.noise import GaussianNoise, LaplaceNoise
from sparsedp.randomness import NoiseSource, noise_lattice

FALSE_ALARM = 1e-9
BOTH = pytest.mark.parametrize(
    ("noise", "law"),
    [(GaussianNoise(0.7), stats.norm(scale=0.7)), (LaplaceNoise(0.7), stats.laplace(scale=0.7))],
    ids=["gaussian", "laplace"],
)


@BOTH
def test_law_of_the_noise_and_not_a_wrong_scale(noise, law):
    drawn = noise.add(np.full(400_000, 3.0), NoiseSource(seed=1).noise) - 3.0  # more than one chunk
    assert stats.kstest(drawn, law.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(drawn * 1.03, law.cdf).pvalue < FALSE_ALARM
    assert np.array_equal(np.rint(drawn / noise_lattice(0.7)), drawn / noise_lattice(0.7))
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01


def test_calibration():
    assert GaussianNoise.calibrated(2.0, 1.0, 1e-6).std == 2.0 * analytic_gaussian_sigma(1.0, 1e-6)
    assert LaplaceNoise.calibrated(2.0, 0.5).scale == 4.0


@BOTH
@pytest.mark.parametrize("d", [1, 30, 1000])
def test_bounds_fail_no_more_often_than_stated(noise, law, d):
    beta, runs = 0.1, 4000
    drawn = noise.add(np.zeros(runs * d), NoiseSource(seed=d).noise).reshape(runs, d)
    passes = stats.binom.isf(FALSE_ALARM, runs, beta)
    largest = np.abs(drawn).max(axis=1) > noise.largest(d, beta)
    norms = np.linalg.norm(drawn, axis=1) > noise.norm(d, beta)
    assert largest.sum() <= passes
    assert norms.sum() <= passes
    assert largest.sum() >= 0.8 * beta * runs  # the largest is known almost exactly


@BOTH
def test_threshold_risk_is_unbiased(noise, law):
    """Mean estimated against mean true squared error of soft thresholding, signal in the first coordinates."""
    d, runs = 40, 4000
    signal = np.zeros(d)
    signal[:12] = np.linspace(0.1, 4.0, 12)
    thresholds = np.array([0.0, 0.3, 0.9, 2.0, 4.0])
    source = NoiseSource(seed=3)
    estimates, errors = np.empty((runs, 5)), np.empty((runs, 5))
    for run in range(runs):
        noisy = noise.add(signal, source.noise)
        estimates[run] = threshold_risk(noisy, noise, thresholds)
        shrunk = np.sign(noisy) * np.maximum(np.abs(noisy) - thresholds[:, None], 0.0)
        errors[run] = ((shrunk - signal) ** 2).sum(axis=1)
    gap = estimates - errors
    standard = gap.std(axis=0) / np.sqrt(runs)
    assert np.all(np.abs(gap.mean(axis=0)) < 6.5 * standard)
    # A wrong constant (2 b^2 for 4 b^2, std^2 for 2 std^2) would show.
    assert np.all(6.5 * standard[1:] < 0.1 * errors.mean(axis=0)[1:])


def test_ball_risk_is_unbiased_and_the_threshold_alone_is_not():
    """The same for the projection to a ball of fixed radius, on whose surface the signal lies."""
    noise, d, runs = GaussianNoise(0.7), 40, 8000
    signal = np.zeros(d)
    signal[:3] = 2.0
    source = NoiseSource(seed=5)
    gaps = np.empty((runs, 2))
    for run in range(runs):
        noisy = noise.add(signal, source.noise)
        ball = project(noisy, 6.0)
        error = ((ball.point - signal) ** 2).sum()
        alone = threshold_risk(noisy, noise, np.array([ball.threshold]))[0]
        gaps[run] = ball_risk(noisy, noise, ball) - error, alone - error
    own, alone = gaps.mean(axis=0) / (gaps.std(axis=0) / np.sqrt(runs))
    assert abs(own) < 6.5
    assert alone > 10.0


@BOTH
def test_risk_is_additive_over_chunks(noise, law):
    magnitudes = np.abs(np.random.default_rng(0).standard_normal(1000))
    thresholds = np.linspace(0.0, 3.0, 7)
    parts = [threshold_risk(part, noise, thresholds) for part in (magnitudes[:300], magnitudes[300:])]
    assert np.allclose(threshold_risk(magnitudes, noise, thresholds), sum(parts))


@BOTH
def test_allowance_is_the_spread_of_the_gains_of_pure_noise_and_a_tail(noise, law):
    """Beside answering zero, over 400 draws: the spread to a quarter, and no more than 1% beyond the allowance."""
    d, runs = 5000, 400
    thresholds = np.linspace(0.0, 0.6 * noise.largest(d, 0.05), 5)
    source = NoiseSource(seed=4)
    gains = np.empty((runs, 5))
    for run in range(runs):
        noisy = noise.add(np.zeros(d), source.noise)
        zero = float(noisy @ noisy) - noise.variance * d
        gains[run] = threshold_risk(noisy, noise, thresholds) - zero
    allowed = noise.risk_allowance(d, thresholds, 0.02)
    # With d = 0 only the constant part of Bernstein's bound is left.
    spread = (allowed - noise.risk_allowance(0, thresholds, 0.02)) / math.sqrt(2 * math.log(50))
    assert np.allclose(spread, gains.std(axis=0), rtol=0.25)
    assert (gains < -allowed).mean() < 0.01
    assert np.allclose(
        gains.mean(axis=0), d * noise.square_excess(thresholds), atol=6 * gains.std(axis=0).max() / 20
    )


@BOTH
def test_excesses(noise, law):
    drawn = np.abs(law.rvs(size=10**6, random_state=1))
    for threshold in (0.0, 0.5, 2.0):
        over = np.maximum(drawn - threshold * noise.scale, 0.0)
        assert noise.beyond(threshold * noise.scale) == pytest.approx((over > 0.0).mean(), rel=0.02)
        assert noise.excess(threshold * noise.scale) == pytest.approx(over.mean(), rel=0.02)
        assert noise.square_excess(np.array(threshold * noise.scale)) == pytest.approx(
            (over**2).mean(), rel=0.03
        )
