"""Numbers of docs/corrections.md that need only arithmetic; and whether the tests that it names exist."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import binom, norm

from sparsedp.accounting import (
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    epsilon,
    epsilon_of,
    merge_sigmas,
)
from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.audit.distinguishing import exact_epsilon, hockey_stick

ROOT = Path(__file__).parents[2]

# One epoch of Criteo-Kaggle in batches of 2048 at delta = 1/n, sigma 0.61.
N, BATCH, SIGMA = 45_840_617, 2048, 0.61
Q, STEPS, DELTA = BATCH / N, N // BATCH, 1 / N


def test_shuffled_batches_are_not_poisson():
    """All others have the gradient -1 and the example +1, or 0: its batch stands out by 2, or by 1.

    The event is that some batch's noisy sum stands out by more than t. Each example is in exactly one batch.
    """
    assert epsilon(noise_multiplier=SIGMA, sampling_rate=Q, steps=STEPS, delta=DELTA) == pytest.approx(
        0.63, abs=0.005
    )

    def bound(t):
        likely = norm.sf((t - 2) / SIGMA)
        rare = norm.sf((t - 1) / SIGMA) + (STEPS - 1) * norm.sf(t / SIGMA)
        return math.log(max(likely - DELTA, 1e-300) / rare)

    best = minimize_scalar(lambda t: -bound(t), bounds=(4, 6), method="bounded")
    assert -best.fun == pytest.approx(9.8, abs=0.1)


def test_dividing_by_the_realised_batch_size():
    """One example against none: a batch of one shows with probability q, and never without the example."""
    q = 0.01
    with_one, without = [1 - q, q], [1.0, 0.0]
    assert hockey_stick(with_one, without, 50.0) == pytest.approx(q)
    assert exact_epsilon(with_one, without, delta=0.99 * q) == math.inf


def test_two_poisson_events_for_one_batch():
    q, steps, delta = 0.01, 1000, 1e-5
    apart = epsilon_of([(PoissonSampledDpEvent(q, GaussianDpEvent(0.8)), 2 * steps)], delta)
    merged = epsilon(noise_multiplier=merge_sigmas(0.8, 0.8), sampling_rate=q, steps=steps, delta=delta)
    assert apart == pytest.approx(4.29, abs=0.01)
    assert merged == pytest.approx(8.97, abs=0.01)


def test_two_groups_clipped_apart_and_accounted_once():
    """Dense parameters and tables, each clipped to C with noise sigma C: together sigma / sqrt(2)."""
    together = epsilon(noise_multiplier=merge_sigmas(SIGMA, SIGMA), sampling_rate=Q, steps=STEPS, delta=DELTA)
    assert together == pytest.approx(4.88, abs=0.02)


@pytest.mark.parametrize(("rows", "expected"), [(1, 0.63), (10, 3.8), (100, 19.7)])
def test_a_user_with_many_rows(rows, expected):
    count = np.arange(rows + 1)
    event = MixtureOfGaussiansDpEvent(SIGMA, count.astype(float).tolist(), binom.pmf(count, rows, Q).tolist())
    assert epsilon_of([(event, STEPS)], DELTA) == pytest.approx(expected, abs=0.06)


def test_delta_of_one_in_n_lets_a_record_out():
    """Publish each record with probability 1/n: (0, 1/n)-DP, and one record is out with probability 0.63."""
    n = 1000
    assert hockey_stick([1 - 1 / n, 1 / n], [1.0, 0.0], 0.0) <= 1 / n + 1e-15
    assert 1 - (1 - 1 / n) ** n == pytest.approx(0.63, abs=0.01)


def test_the_published_run_of_wide():
    """sigma = 0.5 on S2 = 0.05 where the distance is 2 S2; q = 1e-4, 200,000 steps, delta = 1e-5.

    The event: at least k of the noisy steps exceed t. Claimed for the noise and selection together: 30.
    """
    q, steps, delta, distance = 1e-4, 200_000, 1e-5, 2 / 0.5
    best = 0.0
    for t in np.arange(4.5, 6.0, 0.05):
        quiet = norm.sf(t)
        with_one = (1 - q) * quiet + q * norm.sf(t - distance)
        k = np.arange(1, 40)
        excess = np.maximum(binom.sf(k - 1, steps, with_one) - delta, 1e-300)
        best = max(best, float(np.max(np.log(excess) - binom.logsf(k - 1, steps, quiet))))
    assert best == pytest.approx(51.4, abs=0.1)
    tight = epsilon(noise_multiplier=1 / distance, sampling_rate=q, steps=steps, delta=delta)
    assert tight == pytest.approx(75.7, abs=0.2)


@pytest.mark.parametrize(
    ("gamma", "local", "printed", "true"), [(1e-3, 5.0, 0.005, 0.1375), (1e-4, 1.0, 1e-4, 1.718e-4)]
)
def test_amplification_by_sampling(gamma, local, printed, true):
    """Randomised response of the sampled example: the mixture's log-ratio is ln(1 + gamma (e^eps - 1))."""
    p = math.exp(local) / (1 + math.exp(local))
    out, kept = np.array([1 - p, p]), np.array([p, 1 - p])
    mixture = (1 - gamma) * out + gamma * kept
    assert gamma * local == pytest.approx(printed)
    assert exact_epsilon(mixture, out) == pytest.approx(true, rel=1e-3)
    assert exact_epsilon(mixture, out) == pytest.approx(math.log1p(gamma * math.expm1(local)))


def test_the_tau_of_sgo_algorithm_4_is_upside_down():
    """tau^3 / ln(d / (tau beta)) = L sqrt(s) eps n / B as printed, with L = s = eps = B = 1."""
    n, d, beta = 1000, 100, 0.05

    def solve(right, top):
        return brentq(lambda tau: tau**3 / math.log(d / (tau * beta)) - right, 1e-6, top)

    printed, corrected = solve(n, 1000.0), solve(1 / n, 1.0)
    assert printed == pytest.approx(16.8, abs=0.1)
    assert 1 / printed**2 < 1  # fewer than one non-zero: the net is the origin, whatever the data
    assert corrected == pytest.approx(0.21, abs=0.01)


def test_the_noise_of_the_filter_of_sgo_algorithm_6():
    """Algorithm 6 hands (eps/8, delta/4) to Algorithm 5, which hands a quarter of each to Algorithm 1.

    At eps = 1, n = 4096 and delta = 1/n^2, against the kappa = 8 of pre-drawn batch sizes.
    """
    epsilon_each, delta_each = 1 / 32, 4096.0**-2 / 16
    kappa = math.sqrt(8 * math.log(1.25 / delta_each)) / epsilon_each
    assert kappa / 8 == pytest.approx(50, abs=1)


NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_every_test_that_the_page_names_exists():
    named = NAMED.findall((ROOT / "docs" / "corrections.md").read_text())
    assert len(named) > 20
    for path, function in named:
        if function:
            assert f"def {function}(" in (ROOT / path).read_text(), f"{path}::{function}"
