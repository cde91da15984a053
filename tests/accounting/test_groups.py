"""Groups and replaced examples: closed forms, densities, and never less than what one example costs."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from sparsedp.accounting import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    analytic_gaussian_delta,
    analytic_gaussian_epsilon,
    delta_of,
    epsilon_of,
    group_delta_of,
    group_epsilon_of,
    group_trade_off_curve,
    replace_one_delta_of,
    replace_one_epsilon_of,
    user_step_event,
)
from sparsedp.accounting.groups import is_sampled


def sampled(rate, sigma):
    return PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))


@pytest.mark.parametrize("size", [1, 2, 10])
def test_a_group_under_gaussian_noise_moves_it_that_far(size):
    events = [(GaussianDpEvent(4.0), 1), (SelfComposedDpEvent(GaussianDpEvent(8.0), 4), 1)]
    mu = size * math.hypot(1 / 4, 2 / 8)
    assert group_epsilon_of(events, size, 1e-5) == pytest.approx(
        analytic_gaussian_epsilon(1e-5, mu), rel=1e-9
    )
    assert group_delta_of(events, size, 1.0) == pytest.approx(analytic_gaussian_delta(1.0, mu), rel=1e-9)
    assert group_trade_off_curve(events, size).advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-6)


def test_a_group_of_a_training_costs_what_a_user_with_as_many_rows_does():
    events, users = [(sampled(0.05, 2.0), 20)], [(user_step_event(2.0, 0.05, 3), 20)]
    epsilon = group_epsilon_of(events, 3, 1e-5)
    assert epsilon == pytest.approx(epsilon_of(users, 1e-5), rel=1e-12)
    assert epsilon_of(events, 1e-5) < epsilon < 3 * epsilon_of(events, 1e-5 / 30)
    assert group_delta_of(events, 3, 1.0) == pytest.approx(delta_of(users, 1.0), rel=1e-2)


def test_a_mechanism_that_is_not_known_for_groups_goes_by_its_curve():
    events = [(BoundedRangeGaussianDpEvent(3, 0.2, 8.0), 1)]
    one = epsilon_of(events, 1e-5)
    added = 2 * epsilon_of(events, 1e-5 / (1 + math.exp(one) + 1))
    assert 1.5 * one < group_epsilon_of(events, 2, 1e-5) < added
    # Twice the range and twice the shift is another bound, which holds too.
    twice = epsilon_of([(BoundedRangeGaussianDpEvent(3, 0.4, 4.0), 1)], 1e-5)
    assert group_epsilon_of(events, 2, 1e-5) <= 1.001 * twice


def test_pure_dp_of_a_group_is_at_most_the_sum():
    assert group_epsilon_of([(PureDpEvent(0.5), 1)], 4, 1e-9) <= 2.0 * (1 + 1e-6)
    assert group_epsilon_of([(LaplaceDpEvent(4.0), 1)], 4, 1e-9) <= 1.0 * (1 + 1e-6)
    assert group_epsilon_of([(LaplaceDpEvent(4.0), 1)], 4, 1e-9) == pytest.approx(1.0, abs=1e-6)


def test_far_below_what_a_curve_knows_epsilons_are_added():
    # One change costs 12 at 1e-14, two changes twice that at a delta that is e^12 larger.
    events = [(BoundedRangeGaussianDpEvent(1, 0.1, 0.7), 1)]
    found = group_epsilon_of(events, 2, 1e-11)
    assert math.isfinite(found)
    exact = analytic_gaussian_epsilon(1e-11, 2 / 0.7)
    assert exact < found < 2 * exact


def test_nothing_protects_a_group_where_one_example_is_published():
    assert group_epsilon_of([(NonPrivateDpEvent(), 1)], 2, 1e-6) == math.inf
    assert group_delta_of([(NonPrivateDpEvent(), 1)], 2, 1.0) == 1
    assert replace_one_epsilon_of([(NonPrivateDpEvent(), 1)], 1e-6) == math.inf
    assert group_epsilon_of([], 5, 1e-6) == replace_one_epsilon_of([], 1e-6) == 0


def test_replacing_under_gaussian_noise_moves_it_twice_as_far():
    events = [(GaussianDpEvent(3.0), 4)]
    exact = analytic_gaussian_epsilon(1e-6, 4 / 3)
    assert replace_one_epsilon_of(events, 1e-6) == pytest.approx(exact, rel=1e-9)
    assert replace_one_delta_of(events, 1.0) == pytest.approx(analytic_gaussian_delta(1.0, 4 / 3), rel=1e-9)


@pytest.mark.parametrize(("rate", "sigma"), [(0.2, 1.0), (0.5, 2.0), (0.01, 0.7)])
def test_replacing_in_a_sampled_batch_is_covered(rate, sigma):
    """Two batches, one with the example at +1 and one with it at -1 in its place, from their densities."""
    x = np.linspace(-1 - 9 * sigma, 1 + 9 * sigma, 40_001)
    outside = norm.pdf(x, 0, sigma)
    one = (1 - rate) * outside + rate * norm.pdf(x, 1, sigma)
    other = (1 - rate) * outside + rate * norm.pdf(x, -1, sigma)
    events = [(sampled(rate, sigma), 1)]
    for epsilon in (0.0, 0.1, 0.5, 1.0):
        exact = float(np.maximum(one - math.exp(epsilon) * other, 0).sum() * (x[1] - x[0]))
        assert replace_one_delta_of(events, epsilon) >= exact * (1 - 1e-6)
        assert exact > delta_of(events, epsilon)  # one change alone would not cover it
    assert replace_one_delta_of(events, 0.0) == pytest.approx(
        2 * rate * (2 * norm.cdf(0.5 / sigma) - 1), rel=0.35
    )
    assert replace_one_epsilon_of(events, 1e-5) > epsilon_of(events, 1e-5)


def test_what_reads_a_sample_of_the_data():
    assert is_sampled(sampled(0.1, 1.0))
    assert is_sampled(ComposedDpEvent([GaussianDpEvent(1.0), SelfComposedDpEvent(sampled(0.1, 1.0), 3)]))
    assert is_sampled(MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.5, 0.5)))
    assert is_sampled(RepeatAndSelectDpEvent(sampled(0.1, 1.0), 3.0, 1.0))
    assert not is_sampled(ComposedDpEvent([GaussianDpEvent(1.0), LaplaceDpEvent(1.0)]))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda events: group_epsilon_of(events, 0, 1e-6), "size"),
        (lambda events: group_epsilon_of(events, 2.5, 1e-6), "size"),
        (lambda events: group_epsilon_of(events, 10**9, 1e-6), "size"),
        (lambda events: group_epsilon_of(events, 2, 0.0), "delta"),
        (lambda events: group_delta_of(events, 2, -1.0), "epsilon"),
        (lambda events: group_trade_off_curve(events, 0), "size"),
        (lambda events: replace_one_epsilon_of(events, 1.0), "delta"),
        (lambda events: replace_one_delta_of(events, math.nan), "epsilon"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        call([(GaussianDpEvent(1.0), 1)])
