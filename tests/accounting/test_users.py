import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm, poisson

from sparsedp.accounting import (
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    ZCDpEvent,
    analytic_gaussian_epsilon,
    calibrate,
    delta_of,
    epsilon_of,
    user_statement,
    user_step_event,
    user_unit,
)
from sparsedp.accounting.users import events_of_users

N, BATCH, SIGMA = 45_000_000, 2048, 0.61


def epsilon(rows):
    return epsilon_of([(user_step_event(SIGMA, BATCH / N, rows), N // BATCH)], 1 / N)


def test_one_row_is_example_level():
    example = PoissonSampledDpEvent(BATCH / N, GaussianDpEvent(SIGMA))
    assert epsilon(1) == pytest.approx(epsilon_of([(example, N // BATCH)], 1 / N), rel=5e-4)


def test_what_an_example_level_epsilon_is_for_a_user():
    assert epsilon(1) == pytest.approx(0.64, abs=0.005)
    assert epsilon(10) == pytest.approx(3.83, abs=0.01)
    assert epsilon(100) == pytest.approx(19.84, abs=0.02)


def test_probabilities_are_binomial():
    event = user_step_event(1.0, 0.2, 6)
    assert event.sensitivities == tuple(float(k) for k in range(7))
    assert event.sampling_probs == pytest.approx(binom.pmf(range(7), 6, 0.2))


def test_rare_counts_are_taken_for_the_largest():
    event = user_step_event(1.0, 1e-5, 10_000)
    assert len(event.sensitivities) < 40
    assert event.sensitivities[-1] == 10_000
    assert event.sampling_probs[-1] < 1e-30
    assert math.fsum(event.sampling_probs) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("rows", "rate"), [(10**4, 0.5), (10**6, 1e-6), (10**6, 0.01), (10**9, 0.3), (3, 1 - 1e-9), (7, 1e-300)]
)
def test_no_count_becomes_a_smaller_one(rows, rate):
    event = user_step_event(1.0, rate, rows)
    counts, chances = np.array(event.sensitivities), np.array(event.sampling_probs)
    assert len(counts) <= 502
    assert counts[-1] <= rows
    assert math.fsum(chances) == pytest.approx(1, abs=1e-12)
    law = binom(rows, rate)
    for quantile in (1e-9, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9):
        count = law.ppf(quantile)
        assert chances[counts > count].sum() >= law.sf(count) * (1 - 1e-6) - 1e-13
    # And the mean rises by no more than a twentieth of a standard deviation.
    assert chances @ counts - rows * rate <= 0.06 * law.std() + 1e-9 * max(1.0, rows * rate)


@pytest.mark.parametrize(("rows", "rate"), [(10**5, 1e-5), (10**6, 1e-6), (10**9, 1e-9)])
def test_users_with_a_million_rows_of_which_one_is_sampled(rows, rate):
    """One row on average, by Poisson weights: an earlier form said epsilon 0 for a million rows."""
    x = np.linspace(-12, 60, 400_001)
    density = sum(poisson.pmf(count, 1.0) * norm.pdf(x - count) for count in range(60))

    def excess(epsilon):
        return np.maximum(density - math.exp(epsilon) * norm.pdf(x), 0).sum() * (x[1] - x[0]) - 1e-6

    exact = brentq(excess, 1.0, 100.0)
    found = epsilon_of([(user_step_event(1.0, rate, rows), 1)], 1e-6)
    assert found == pytest.approx(exact, abs=0.02)  # binomial for Poisson: 1e-5 of the mass
    one_hundred = epsilon_of([(user_step_event(1.0, rate, rows), 100)], 1e-6)
    assert one_hundred == pytest.approx(169.88, abs=0.1)  # by dp_accounting on a grid of 1e-2


def test_users_with_a_million_rows_of_which_thousands_are_sampled():
    # Almost always the mean: the Gaussian of that shift, from below, and with a thousandth of noise less.
    event = user_step_event(1e4, 0.01, 10**6)
    exact = analytic_gaussian_epsilon(1e-6, math.sqrt(10))
    assert exact <= epsilon_of([(event, 10)], 1e-6) <= 1.01 * exact


def test_certain_sampling_is_group_privacy():
    assert epsilon_of([(user_step_event(4.0, 1.0, 2), 1)], 1e-6) == pytest.approx(
        epsilon_of([(GaussianDpEvent(2.0), 1)], 1e-6), rel=5e-4
    )


def test_calibration_for_users():
    sigma = calibrate(
        target_epsilon=2.0,
        target_delta=1e-6,
        sampling_rate=0.01,
        steps=100,
        step_event=lambda sigma: user_step_event(sigma, 0.01, 5),
    )
    assert 1.998 < epsilon_of([(user_step_event(sigma, 0.01, 5), 100)], 1e-6) <= 2
    assert sigma > calibrate(target_epsilon=2.0, target_delta=1e-6, sampling_rate=0.01, steps=100)


def test_the_statement_names_the_unit():
    statement = user_statement(2.0, 1e-6, 5, "the final model")
    assert statement.unit == user_unit(5) == "user (at most 5 rows)"
    assert "cut to 5" in str(statement)
    assert statement.private
    assert not user_statement(2.0, 1e-6, 5, "the final model", private=False).private


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 0.1, 1), "noise_multiplier"),
        ((1.0, 0.0, 1), "sampling_rate"),
        ((1.0, 0.1, 0), "rows_per_user"),
        ((1.0, 0.1, 10**10), "rows_per_user"),
        ((1.0, 0.1, 1e300), "rows_per_user"),
    ],
)
def test_bad_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        user_step_event(*arguments)


def test_what_examples_cost_a_user():
    step, once = PoissonSampledDpEvent(0.01, GaussianDpEvent(2.0)), GaussianDpEvent(40.0)
    assert events_of_users([(once, 1), (step, 7)], 4) == [
        (GaussianDpEvent(10.0), 1),
        (user_step_event(2.0, 0.01, 4), 7),
    ]
    assert events_of_users([(LaplaceDpEvent(8.0), 2), (PureDpEvent(0.1), 1)], 4) == [
        (LaplaceDpEvent(2.0), 2),
        (PureDpEvent(0.4), 1),
    ]
    with pytest.raises(ValueError, match="rows_per_user: the price of ZCDpEvent for a user is not known"):
        events_of_users([(ZCDpEvent(0.1), 1)], 4)


def test_releases_in_turn_are_dominated_by_the_mixture():
    """AdaFEST releases a map and then a gradient whose mask depends on it: here a threshold decides which of two
    coordinates the second release looks at. The exact hockey-stick divergences, by sums over grids, stay below."""
    q, rows, sigma = 0.3, 3, 1.1
    sigma1 = sigma2 = sigma * math.sqrt(2)
    counts, weights = np.arange(rows + 1), binom.pmf(range(rows + 1), rows, q)
    first, second = np.linspace(-9, 13, 441), np.linspace(-12, 13, 501)
    cell = (first[1] - first[0]) * (second[1] - second[0])

    def law(k, sign):
        """Of (first release, second release); the second has k's shift only where the first passes 1, else -k's."""
        at_first = norm.pdf(first, k, sigma1)
        shift = np.where(first > 1, k, sign * k)
        return at_first[:, None] * norm.pdf(second[None, :], shift[:, None], sigma2)

    for sign in (0, -1, 1):
        without = law(0, sign)
        with_user = sum(w * law(k, sign) for k, w in zip(counts, weights, strict=True))
        for epsilon in (0.0, 0.5, 1.5, 3.0):
            claimed = delta_of([(user_step_event(sigma, q, rows), 1)], epsilon)
            pairs = ((with_user, without), (without, with_user))
            exact = max(float(np.maximum(p - math.exp(epsilon) * r, 0).sum() * cell) for p, r in pairs)
            assert exact <= claimed + 1e-5, (sign, epsilon)
            if sign == 1 and epsilon <= 1.5:  # both releases move the same way: the mixture itself
                assert exact == pytest.approx(claimed, rel=0.01)
