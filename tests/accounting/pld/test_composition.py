"""Against dp-accounting wherever it supports the event, against exact formulas, and at the edges of what can be asked."""

import itertools
import math
import warnings

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.accounting import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    SparseVectorDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    ZCDpEvent,
    analytic_gaussian_delta,
    analytic_gaussian_epsilon,
    delta_of,
)
from sparsedp.accounting.pld.composition import delta_bound, epsilon_answer, tolerance
from sparsedp.accounting.pld.one_sided import OneSidedPld


def ours(events, delta):
    answer = epsilon_answer(events, delta)
    assert answer.converged
    return answer.epsilon


@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
def test_every_step_on_the_whole_data_counts(steps):
    """Poisson sampling at rate 1 is no sampling: T steps are one Gaussian of sigma / sqrt(T)."""
    whole = [(PoissonSampledDpEvent(1.0, GaussianDpEvent(3.0)), steps)]
    expected = analytic_gaussian_epsilon(1e-4, math.sqrt(steps) / 3.0)
    assert ours(whole, 1e-4) == pytest.approx(expected, rel=1e-9)
    assert delta_bound(whole, expected) == pytest.approx(1e-4, rel=1e-3)


def theirs(events, delta, grid, relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE):
    accountant = PLDAccountant(relation, grid)
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def sampled(rate, sigma):
    return PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))


@pytest.mark.parametrize(
    ("events", "grid"),
    [
        ([(GaussianDpEvent(2.0), 7)], 1e-3),
        ([(sampled(0.01, 1.0), 100)], 1e-4),
        ([(sampled(0.2, 3.0), 50)], 1e-4),
        ([(LaplaceDpEvent(5.0), 30)], 1e-3),
        ([(PoissonSampledDpEvent(0.1, LaplaceDpEvent(2.0)), 50)], 1e-3),
        ([(DiscreteLaplaceDpEvent(0.5, 3), 20)], 1e-3),
        ([(MixtureOfGaussiansDpEvent(4.0, [0.0, 1.0, 2.0], [0.8, 0.15, 0.05]), 5)], 1e-3),
        ([(TruncatedSubsampledGaussianDpEvent(1000, 0.1, 110, 2.0), 5)], 1e-3),
        ([(sampled(0.01, 1.0), 100), (GaussianDpEvent(20.0), 1), (LaplaceDpEvent(10.0), 2)], 1e-4),
    ],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-7])
def test_agrees_with_dp_accounting(events, grid, delta):
    assert ours(events, delta) == pytest.approx(theirs(events, delta, grid), abs=1e-3)


def test_agrees_with_dp_accounting_on_a_fine_grid_for_small_epsilon():
    # One epoch of 4.5e7 examples in batches of 2048 with sigma 3: a grid of 1e-4 would say 0.04 instead of 0.01.
    events = [(sampled(2048 / 4.5e7, 3.0), 21_972)]
    assert ours(events, 1 / 4.5e8) == pytest.approx(theirs(events, 1 / 4.5e8, 1e-6), rel=1e-3)


def test_randomised_response_agrees_where_their_count_is_not_lost():
    event = RandomizedResponseDpEvent(0.4, 5)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    once, ten_times = [(event, 1)], [(event, 1)] * 10
    assert ours(once, 1e-3) == pytest.approx(theirs(once, 1e-3, 1e-3, relation), abs=1e-3)
    assert ours(ten_times, 1e-3) == pytest.approx(theirs(ten_times, 1e-3, 1e-4, relation), abs=2e-3)
    # The library drops the count; this one does not.
    assert theirs([(event, 10)], 1e-3, 1e-3, relation) == pytest.approx(ours(once, 1e-3), abs=1e-3)
    assert ours([(event, 10)], 1e-3) == pytest.approx(ours(ten_times, 1e-3), rel=1e-12)


EVENTS = [
    GaussianDpEvent(5.0),
    sampled(0.05, 1.5),
    LaplaceDpEvent(10.0),
    PoissonSampledDpEvent(0.1, LaplaceDpEvent(3.0)),
    DiscreteLaplaceDpEvent(0.1, 2),
    RandomizedResponseDpEvent(0.7, 4),
    MixtureOfGaussiansDpEvent(4.0, (0.0, 1.0), (0.9, 0.1)),
    TruncatedSubsampledGaussianDpEvent(500, 0.1, 60, 2.0),
    PureDpEvent(0.1),
    BoundedRangeGaussianDpEvent(3, 0.1, 8.0),
    PoissonSampledDpEvent(0.1, BoundedRangeGaussianDpEvent(3, 0.2, 3.0)),
    SparseVectorDpEvent(3, 60.0, 80.0, 50.0),
    PoissonSampledDpEvent(0.1, ComposedDpEvent([SparseVectorDpEvent(2, 30.0, 40.0), GaussianDpEvent(4.0)])),
    ZCDpEvent(0.01),
    RepeatAndSelectDpEvent(ZCDpEvent(0.001), 3.0, math.inf),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_self_composition_is_that_many_copies(event):
    copies = ours([(event, 1)] * 4, 1e-5)
    assert copies > ours([(event, 1)], 1e-5)
    for same in ([(event, 4)], [(SelfComposedDpEvent(event, 4), 1)], [(ComposedDpEvent([event] * 2), 2)]):
        assert ours(same, 1e-5) == pytest.approx(copies, rel=1e-12)


def test_pure_dp_composes_like_the_binomial_it_is():
    # 40 randomised responses: delta at an epsilon by summing over how many told the truth.
    from scipy.stats import binom

    count, epsilon = 40, 0.3
    truths = range(count + 1)
    exact = sum(
        binom.pmf(k, count, 1 / (1 + math.exp(-epsilon)))
        * -math.expm1(min(3.0 - epsilon * (2 * k - count), 0))
        for k in truths
    )
    found = delta_of([(PureDpEvent(epsilon), count)], 3.0)
    assert exact <= found <= exact * 1.003


@pytest.mark.parametrize("delta", [1e-30, 1e-8, 1e-3])
@pytest.mark.parametrize(("rate", "sigma"), [(1e-9, 0.2), (1e-5, 1.0), (1e-3, 1.0), (0.01, 1e4), (0.5, 1.0)])
def test_one_sampled_gaussian_against_its_formula(rate, sigma, delta):
    # The remove direction decides: delta = rate * delta_G(ln(1 + (e^epsilon - 1) / rate)).
    inner = analytic_gaussian_epsilon(delta / rate, 1 / sigma) if delta < rate else 0.0
    exact = math.log1p(rate * math.expm1(inner))
    assert exact <= ours([(sampled(rate, sigma), 1)], delta) <= exact + 2 * tolerance(exact)


@pytest.mark.parametrize("delta", [1e-25, 1e-9])
def test_many_gaussians_on_a_grid_against_the_formula(delta):
    # Certain mixtures are Gaussians that the accountant does not recognise as such.
    events = [(MixtureOfGaussiansDpEvent(100.0, (1.0,), (1.0,)), 10_000)]
    exact = analytic_gaussian_epsilon(delta, 1.0)
    assert exact <= ours(events, delta) <= exact + 2 * tolerance(exact)


@pytest.mark.parametrize("mu", [1e-4, 3e-4, 1e-3, 1.0])
def test_the_rounding_of_a_trillion_steps_is_allowed_for(mu):
    # An FFT rounds by 1e-16 a step: by more than delta, which an earlier form took for an upper bound all the same.
    exact = analytic_gaussian_epsilon(1e-6, mu)
    steps = [(MixtureOfGaussiansDpEvent(1e6 / mu, (1.0,), (1.0,)), 10**12)]
    answer = epsilon_answer(steps, 1e-6)
    assert exact <= answer.epsilon <= 8 * exact
    assert not answer.converged
    assert delta_bound(steps, exact) >= 1e-6


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.4])
def test_what_the_rounding_may_hide_is_allowed_for(noise, monkeypatch):
    monkeypatch.setattr(OneSidedPld, "noise", lambda *_: noise)
    steps = [(MixtureOfGaussiansDpEvent(10.0, (1.0,), (1.0,)), 100)]
    exact = analytic_gaussian_epsilon((1 - noise) * 1e-6, 1.0)
    answer = epsilon_answer(steps, 1e-6)
    assert exact <= answer.epsilon <= exact + 2 * tolerance(exact)
    assert answer.converged == (noise == 0.0)
    assert delta_bound(steps, 4.0) >= (1 + 0.9 * noise) * analytic_gaussian_delta(4.0, 1.0)


def test_a_grid_that_drowned_is_not_read(monkeypatch):
    monkeypatch.setattr(OneSidedPld, "noise", lambda *_: 0.6)
    steps = [(MixtureOfGaussiansDpEvent(10.0, (1.0,), (1.0,)), 100)]
    # What is left is the Chernoff bound, 1/2 + sqrt(2 ln(1/delta)).
    answer = epsilon_answer(steps, 1e-6)
    assert answer.epsilon == pytest.approx(0.5 + math.sqrt(2 * math.log(1e6)), rel=1e-3)
    assert not answer.converged


def test_a_trillion_sampled_steps_are_nearly_one_gaussian():
    exact = analytic_gaussian_epsilon(1e-6, 1e-3 * math.sqrt(math.expm1(40.0**-2)))
    assert 0.999 * exact <= epsilon_answer([(sampled(1e-9, 40.0), 10**12)], 1e-6).epsilon <= 8 * exact


@given(
    rate=st.floats(1e-5, 1),
    sigma=st.floats(0.5, 20),
    steps=st.integers(1, 2000),
    delta=st.floats(1e-12, 1e-2),
)
@settings(max_examples=12, deadline=None)
def test_epsilon_and_delta_agree(rate, sigma, steps, delta):
    events = [(sampled(rate, sigma), steps)]
    epsilon = epsilon_answer(events, delta).epsilon
    if epsilon > 1e-4:
        assert delta_bound(events, epsilon) <= delta * 1.002
        assert delta_bound(events, epsilon * 0.99) >= delta * 0.99


@given(rate=st.floats(1e-4, 0.5), sigma=st.floats(0.6, 5), steps=st.integers(1, 500))
@settings(max_examples=8, deadline=None)
def test_more_noise_fewer_steps_and_less_sampling_never_cost_more(rate, sigma, steps):
    here = epsilon_answer([(sampled(rate, sigma), steps)], 1e-6).epsilon
    slack = 2 * tolerance(here)
    assert epsilon_answer([(sampled(rate, sigma * 1.1), steps)], 1e-6).epsilon <= here + slack
    assert epsilon_answer([(sampled(rate * 0.9, sigma), steps)], 1e-6).epsilon <= here + slack
    assert epsilon_answer([(sampled(rate, sigma), steps + 20)], 1e-6).epsilon >= here - slack


def test_nothing_and_everything():
    assert ours([], 1e-6) == 0
    assert ours([(NoOpDpEvent(), 5)], 1e-6) == 0
    assert ours([(NonPrivateDpEvent(), 1)], 1e-6) == math.inf
    assert ours([(GaussianDpEvent(1.0), 1), (NonPrivateDpEvent(), 0)], 1e-6) < 10
    assert delta_bound([(NonPrivateDpEvent(), 1)], 1.0) == 1
    assert delta_bound([], 1.0) == 0
    # Below the probability of ever being sampled, no epsilon at all is needed.
    assert ours([(sampled(1e-6, 0.3), 10)], 0.01) == 0


@pytest.mark.parametrize("delta", [1e-300, 1e-6, 0.99])
@pytest.mark.parametrize("epsilon", [30.0, 800.0, 1e6])
def test_pure_events_of_any_size(epsilon, delta):
    # Three randomised responses that all but always tell the truth: delta = 1 - e^(found - 3 epsilon).
    exact = 3 * epsilon + math.log1p(-delta)
    found = epsilon_answer([(PureDpEvent(epsilon), 3)], delta).epsilon
    assert exact - 1e-6 <= found <= 3 * epsilon * (1 + 1e-9)
    assert delta_bound([(PureDpEvent(epsilon), 3)], 3.001 * epsilon) == pytest.approx(0, abs=1e-12)
    assert delta_bound([(PureDpEvent(epsilon), 3)], 0.0) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("events", "largest"),
    [
        (
            [(LaplaceDpEvent(1.7710619523406421), 6), (PureDpEvent(0.7728330792862452), 1)],
            6 / 1.7710619523406421 + 0.7728330792862452,
        ),
        ([(DiscreteLaplaceDpEvent(1.446099110459837, 1), 6)], 6 * 1.446099110459837),
        ([(PoissonSampledDpEvent(0.5, LaplaceDpEvent(0.5)), 3)], 3 * math.log(0.5 + 0.5 * math.exp(2))),
    ],
)
def test_bounded_losses_cost_no_more_than_their_sum(events, largest):
    # The losses, rounded to a grid, add up to more: 4.1613 and 8.6777 in an earlier form.
    assert largest - 1e-3 < ours(events, 1e-6) <= largest * (1 + 1e-12)
    assert ours(events, 1e-12) <= largest * (1 + 1e-12)


def test_noise_without_limit_releases_nothing():
    for event in (
        LaplaceDpEvent(math.inf),
        GaussianDpEvent(math.inf),
        MixtureOfGaussiansDpEvent(math.inf, (0.0, 1.0), (0.5, 0.5)),
        TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, math.inf),
        SparseVectorDpEvent(3, math.inf, math.inf),
        PureDpEvent(0.0),
        ZCDpEvent(0.0),
    ):
        for form in (event, PoissonSampledDpEvent(0.1, event)):
            assert epsilon_answer([(form, 3)], 1e-6).epsilon <= 1e-9
            assert delta_bound([(form, 3)], 1.0) <= 1e-12


@pytest.mark.parametrize("mu", [33.0, 100.0, 1e3, 3e4])
def test_gaussians_whose_densities_have_nothing_in_common(mu):
    exact = analytic_gaussian_epsilon(1e-6, mu)
    for events in (
        [(MixtureOfGaussiansDpEvent(1 / mu, (1.0,), (1.0,)), 1)],
        [(GaussianDpEvent(1 / mu), 1), (LaplaceDpEvent(1e9), 1)],
    ):
        assert exact <= epsilon_answer(events, 1e-6).epsilon <= 1.01 * exact
    beside = epsilon_answer([(GaussianDpEvent(1 / mu), 1), (PureDpEvent(1.0), 1)], 1e-6).epsilon
    assert exact < beside <= 1.01 * exact + 1.0


def test_a_batch_that_is_published_with_some_probability():
    published = [(PoissonSampledDpEvent(0.01, NonPrivateDpEvent()), 3)]
    exact = 1 - 0.99**3
    assert delta_bound(published, 0.0) == pytest.approx(exact, rel=1e-3)
    assert exact <= delta_bound(published, 1e4) <= 1.01 * exact
    assert epsilon_answer(published, 1.01 * exact).epsilon < 0.1
    assert epsilon_answer(published, 0.9 * exact).epsilon == math.inf
    # Pure noise of next to nothing is as good as none.
    assert epsilon_answer([(sampled(0.01, 1e-200), 3)], 0.9 * exact).epsilon == math.inf
    assert epsilon_answer([(sampled(1e-12, 1e-200), 3)], 1e-6).epsilon == 0


def test_an_epsilon_above_a_billion_is_infinite():
    assert epsilon_answer([(GaussianDpEvent(3e-5), 1)], 1e-6).epsilon < 1e9
    assert epsilon_answer([(GaussianDpEvent(2e-5), 1)], 1e-6).epsilon == math.inf
    assert epsilon_answer([(PureDpEvent(1.0), 10**10)], 1e-6).epsilon == math.inf


def check_extremes(sigmas, rates, steps, deltas):
    for sigma, rate, count, delta in itertools.product(sigmas, rates, steps, deltas):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer = epsilon_answer([(sampled(rate, sigma), count)], delta)
        assert 0 <= answer.epsilon < math.inf, (sigma, rate, count, delta)


def test_extreme_parameters_give_an_answer():
    check_extremes([0.2, 1e4], [1e-9, 0.999], [1, 10**7], [1e-30, 0.5])


@pytest.mark.slow
def test_all_extreme_parameters_give_an_answer():
    check_extremes([0.2, 1.0, 30.0, 1e4], [1e-9, 1e-5, 1e-2, 0.5, 1.0], [1, 1000, 10**7], [1e-30, 1e-8, 0.5])


def test_a_long_run_beside_wide_and_narrow_events():
    # Steps of 1e-13 in loss beside a Laplace of 20: each on its own grid, brought together at the end.
    wide = [(LaplaceDpEvent(0.05), 1)]
    both = [*wide, (sampled(1e-9, 100.0), 10**6)]
    assert ours(wide, 1e-6) <= ours(both, 1e-6) <= ours(wide, 1e-6) + 2 * tolerance(20.0)


def test_many_kinds_of_events_at_once():
    events = [(sampled(2.0**-k, 4.0), 2**k) for k in range(1, 12)]
    separate = [ours([event], 1e-6) for event in events]
    assert max(separate) < ours(events, 1e-6) < sum(separate)


@pytest.mark.parametrize("rate", [1e-20, 1e-16, 1e-12, 1e-9, 1e-6])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 100.0])
def test_a_small_sampling_rate_keeps_its_digits_at_epsilon_zero(rate, sigma):
    """There delta is the total variation, rate x that of the Gaussians; as a difference of masses it would be lost."""
    exact = rate * math.erf(1 / (2 * math.sqrt(2) * sigma))
    assert exact <= delta_of([(sampled(rate, sigma), 1)], 0.0) <= 1.001 * exact
