from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.audit import flip_coins, one_run
from sparsedp.audit.coins import LARGEST_EPSILON, one_run_epsilon, one_run_gaussian_epsilon
from sparsedp.randomness import NoiseSource, Stream


def stream(seed: int = 0) -> Stream:
    return NoiseSource(seed).noise


def responses(epsilon: float, canaries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response on each canary's coin: the mechanism for which the theorem is tight."""
    random = stream(seed)
    included = flip_coins(canaries, random)
    honest = random.uniform(canaries) < 1 / (1 + math.exp(-epsilon))
    return np.where(honest, included, ~included) + 0.1 * random.uniform(canaries), included


def gaussian(mu: float, canaries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = stream(seed)
    included = flip_coins(canaries, random)
    return mu * included + random.normal(canaries), included


def test_coins_are_fair_and_independent() -> None:
    coins = flip_coins(100_000, stream())
    assert abs(coins.mean() - 0.5) < 0.01  # six standard deviations
    assert abs((coins[1:] == coins[:-1]).mean() - 0.5) < 0.01


def test_randomised_response_is_bounded_tightly_and_rarely_above_its_epsilon() -> None:
    """Guessing all: wrong with probability at most 0.05 (binomial, so a little less), and not much less."""
    runs, epsilon = 800, 1.0
    bounds = [
        one_run(*responses(epsilon, 200, seed), delta=0.0, claimed=epsilon, guesses=[200]).lower_bound
        for seed in range(runs)
    ]
    above = sum(bound > epsilon for bound in bounds)
    assert binom.ppf(1e-9, runs, 0.02) <= above <= binom.ppf(1 - 1e-9, runs, 0.05)
    assert np.mean(bounds) > 0.6


def test_the_bound_inverts_the_binomial_tail() -> None:
    bound = one_run_epsilon(100, 80, canaries=100, delta=0.0, confidence=0.95)
    assert binom.sf(79, 100, 1 / (1 + math.exp(-bound))) == pytest.approx(0.05, abs=1e-5)
    assert one_run_epsilon(100, 50, canaries=100, delta=0.0, confidence=0.95) == 0.0
    assert one_run_epsilon(100, 0, canaries=100, delta=0.0, confidence=0.95) == 0.0
    assert one_run_epsilon(5000, 5000, canaries=5000, delta=0.0, confidence=0.5) < LARGEST_EPSILON


def test_delta_costs_by_the_steepest_part_of_the_tail() -> None:
    bound = one_run_epsilon(100, 90, canaries=400, delta=1e-4, confidence=0.95)
    law = binom(100, 1 / (1 + math.exp(-bound)))
    steepest = max((law.cdf(89) - law.cdf(89 - i)) / i for i in range(1, 91))
    assert law.sf(89) + 2 * 400 * 1e-4 * steepest == pytest.approx(0.05, abs=1e-5)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_gaussian_mechanism_stays_below_its_epsilon(mu: float) -> None:
    epsilon = analytic_gaussian_epsilon(1e-5, mu)
    found = [one_run(*gaussian(mu, 1000, seed), delta=1e-5, claimed=epsilon) for seed in range(20)]
    assert not any(result.refuted or result.gaussian_lower_bound > epsilon for result in found)
    assert np.mean([result.gaussian_lower_bound for result in found]) > 0.25 * epsilon
    assert all(result.gaussian_lower_bound >= 0.99 * result.lower_bound for result in found)


def test_half_the_noise_is_caught() -> None:
    """Positive control: claimed for mu = 0.5, run at mu = 2."""
    claimed = analytic_gaussian_epsilon(1e-5, 0.5)
    assert one_run(*gaussian(2.0, 1000, 0), delta=1e-5, claimed=claimed).refuted
    assert "REFUTED" in str(one_run(*gaussian(2.0, 1000, 0), delta=1e-5, claimed=claimed))


def test_more_canaries_show_more_and_no_noise_shows_everything() -> None:
    few, many = (
        one_run(*gaussian(1.0, canaries, 3), delta=1e-5, claimed=5.0).lower_bound
        for canaries in (100, 10_000)
    )
    assert few < many
    included = flip_coins(1000, stream())
    shown = one_run(included.astype(float), included, delta=1e-5, claimed=1.0)
    assert shown.correct == shown.guesses
    assert shown.lower_bound > 4


def test_gaussian_bounds_at_the_ends() -> None:
    assert one_run_gaussian_epsilon(100, 0, canaries=100, delta=1e-5, confidence=0.95) == 0.0
    assert one_run_gaussian_epsilon(100, 50, canaries=100, delta=1e-5, confidence=0.95) == 0.0
    assert one_run_gaussian_epsilon(100, 100, canaries=100, delta=0.0, confidence=0.95) == 0.0
    assert one_run_gaussian_epsilon(100, 95, canaries=100, delta=1e-5, confidence=0.95) > 1.0


@pytest.mark.parametrize(
    ("scores", "included", "message"),
    [
        ([], np.array([], dtype=bool), "scores"),
        ([1.0, float("nan")], np.array([True, False]), "scores"),
        ([1.0, 2.0], np.array([True]), "included"),
        ([1.0, 2.0], np.array([1, 0]), "included"),
    ],
)
def test_bad_input(scores: list[float], included: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message} must be"):
        one_run(scores, included, delta=1e-5, claimed=1.0)


@pytest.mark.parametrize("guesses", [[0], [3], []])
def test_guesses_beyond_the_canaries_are_refused(guesses: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^guesses must be between 1 and the number of canaries, 2"):
        one_run([1.0, 2.0], np.array([True, False]), delta=1e-5, claimed=1.0, guesses=guesses)


def test_the_confidence_is_a_probability() -> None:
    with pytest.raises(ValueError, match=r"^confidence must lie strictly between"):
        one_run([1.0, 2.0], np.array([True, False]), delta=1e-5, claimed=1.0, confidence=1.0)


def test_numbers_of_guesses_share_the_error_rate() -> None:
    """The best of several bounds holds only if each may err with its part."""
    scores, included = np.arange(100.0), np.arange(100) >= 45
    found = one_run(scores, included, delta=0.0, claimed=1.0, confidence=0.9, guesses=[20, 100])
    each = [
        one_run_epsilon(guesses, correct, canaries=100, delta=0.0, confidence=0.95)
        for guesses, correct in ((20, 20), (100, 95))
    ]
    assert found.lower_bound == pytest.approx(max(each), rel=1e-6)
    assert found.lower_bound > 0


@pytest.mark.parametrize(("guesses", "correct"), [(20, 20), (20, 18), (40, 31)])
def test_abstentions_never_raise_the_gaussian_bound(guesses: int, correct: int) -> None:
    """Canaries that are not guessed only make it likelier that some of those which are stand out."""
    bounds = [
        one_run_gaussian_epsilon(guesses, correct, canaries=canaries, delta=1e-5, confidence=0.95)
        for canaries in (guesses, 2 * guesses, 20 * guesses)
    ]
    assert bounds[0] >= bounds[1] >= bounds[2]
    assert bounds[0] > 0
