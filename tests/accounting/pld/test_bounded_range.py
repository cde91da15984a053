"""One exponential-mechanism draw and many: exact worst cases stay below what is claimed, and reach it where they can."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.closed_forms import bounded_range_delta

from sparsedp.accounting import (
    BoundedRangeGaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    delta_of,
    epsilon_of,
)
from sparsedp.accounting.pld.bounded_range import BoundedRange, laplace
from sparsedp.accounting.pld.grid import discretise


def two_outcomes(epsilon, t):
    """The bounded-range mechanism with losses t and t - epsilon."""
    p = math.expm1(t - epsilon) / math.expm1(-epsilon)
    return np.array([p, 1 - p]), np.array([p * math.exp(-t), (1 - p) * math.exp(epsilon - t)])


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@given(epsilon=st.floats(0.01, 5), share=st.floats(0, 1), at=st.floats(-1, 1))
@settings(deadline=None)
def test_the_curve_is_above_every_two_outcome_mechanism_and_touches_the_worst(epsilon, share, at):
    loss = at * epsilon
    assert (
        bounded_range_delta(loss, epsilon)
        >= hockey_stick(*two_outcomes(epsilon, share * epsilon), loss) - 1e-12
    )
    worst = hockey_stick(*two_outcomes(epsilon, (loss + epsilon) / 2), loss)
    assert bounded_range_delta(loss, epsilon) == pytest.approx(worst, rel=1e-9, abs=1e-12)


@given(epsilon=st.floats(0.01, 5), at=st.floats(-1.5, 1.5))
def test_the_curve_is_its_own_reversal(epsilon, at):
    loss = at * epsilon
    reversal = 1 - math.exp(loss) * (1 - bounded_range_delta(-loss, epsilon))
    assert bounded_range_delta(loss, epsilon) == pytest.approx(reversal, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0])
def test_the_pair_has_the_curve(epsilon):
    edges = np.linspace(-epsilon, epsilon, 20001)
    p, q = BoundedRange(epsilon).cells(edges)
    for loss in np.linspace(-0.9, 0.9, 7) * epsilon:
        assert hockey_stick(p, q, loss) == pytest.approx(bounded_range_delta(loss, epsilon), rel=1e-6)


def draw_without_replacement(scores, epsilon, draws):
    """Exact probabilities of every ordered outcome of `draws` exponential-mechanism draws."""
    weights = np.exp(epsilon * np.asarray(scores) / 2)
    outcomes = []
    for order in itertools.permutations(range(len(scores)), draws):
        left, probability = weights.sum(), 1.0
        for index in order:
            probability *= weights[index] / left
            left -= weights[index]
        outcomes.append(probability)
    return np.array(outcomes)


def audit(scores, other, epsilon, draws, claim):
    """Whether the exact deltas, in both directions and at many epsilons, stay below a claimed curve."""
    p, q = draw_without_replacement(scores, epsilon, draws), draw_without_replacement(other, epsilon, draws)
    return all(
        hockey_stick(*pair, loss) <= claim(loss) * (1 + 1e-9) + 1e-12
        for loss in np.linspace(0.05, 0.8, 4) * draws * epsilon
        for pair in ((p, q), (q, p))
    )


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_draws_of_the_exponential_mechanism_stay_below_the_claim(data):
    epsilon, draws, size = data.draw(st.floats(0.2, 2.0)), data.draw(st.integers(1, 3)), 5
    scores = np.array(data.draw(st.lists(st.floats(0, 4), min_size=size, max_size=size)))
    move = np.array(data.draw(st.lists(st.floats(-1, 1), min_size=size, max_size=size)))
    event = BoundedRangeGaussianDpEvent(draws, epsilon)
    assert audit(scores, scores + move, epsilon, draws, lambda loss: delta_of([(event, 1)], loss))


def test_the_audit_catches_half_the_epsilon_and_too_few_draws():
    # All scores fall by one but that of the first draws, which rise: the extreme pair for peeling.
    scores, other = np.array([2.0, 2, 2, 2, 2]), np.array([3.0, 3, 1, 1, 1])
    honest = [(BoundedRangeGaussianDpEvent(2, 1.0), 1)]
    assert audit(scores, other, 1.0, 2, lambda loss: delta_of(honest, loss))
    for lie in (BoundedRangeGaussianDpEvent(2, 0.5), BoundedRangeGaussianDpEvent(1, 1.0)):
        assert not audit(scores, other, 1.0, 2, lambda loss, lie=lie: delta_of([(lie, 1)], loss))


@pytest.mark.parametrize("rate", [1e-4, 0.02, 0.5])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_one_sampled_draw_has_the_amplified_curve(rate, epsilon):
    event = PoissonSampledDpEvent(rate, BoundedRangeGaussianDpEvent(1, epsilon))
    for share in (0.1, 0.5, 0.9):
        inner = share * epsilon
        loss = math.log1p(rate * math.expm1(inner))
        exact = rate * bounded_range_delta(inner, epsilon)
        assert exact <= delta_of([(event, 1)], loss) <= exact * 1.02


def test_sampled_draws_against_simulation():
    # Two draws on one Poisson batch of rate 0.3: the losses of 4e5 simulated runs under P, and the delta they estimate.
    rate, epsilon, generator = 0.3, 1.0, np.random.default_rng(5)
    size = 400_000
    uniform = generator.random((2, size, 2))
    inside = generator.random(size) < rate
    # P of a draw has density e^(x/2) on [-epsilon, epsilon], Q has e^(-x/2): by inversion.
    with_record = 2 * np.log(math.exp(-epsilon / 2) + uniform[0] * 2 * math.sinh(epsilon / 2))
    without = -2 * np.log(math.exp(-epsilon / 2) + uniform[1] * 2 * math.sinh(epsilon / 2))
    joint = np.where(inside[:, None], with_record, without).sum(axis=1)
    losses = np.log1p(rate * np.expm1(joint))
    event = PoissonSampledDpEvent(rate, BoundedRangeGaussianDpEvent(2, epsilon))
    for loss in (0.1, 0.4):
        gains = -np.expm1(np.minimum(loss - losses, 0))
        # Six standard errors: a false alarm has probability below 1e-8.
        assert delta_of([(event, 1)], loss) == pytest.approx(
            gains.mean(), abs=6 * gains.std() / math.sqrt(size)
        )


def test_laplace_is_bounded_range_or_randomised_response():
    epsilon = 0.8
    loss = discretise(laplace(epsilon), 2**-14, 1e-12)
    for at in (0.0, 0.2, 0.5, 0.79):
        exact = -math.expm1((at - epsilon) / 2)  # delta of Laplace noise of scale 1/epsilon
        assert hockey_stick(loss.p, loss.q, at) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("epsilon", [1e3, 1e5, 1e7, 1e9])
def test_a_draw_of_any_size_has_all_its_mass(epsilon):
    for edges in (np.zeros(1), np.linspace(-epsilon, epsilon, 7), np.array([-3 * epsilon, 2 * epsilon])):
        p, q = BoundedRange(epsilon).cells(edges)
        assert p.sum() == pytest.approx(1, abs=1e-12)
        assert q == pytest.approx(BoundedRange(epsilon).cells(-edges[::-1])[0][::-1], abs=1e-15)


@pytest.mark.filterwarnings("ignore::sparsedp.accounting.LooseEpsilonWarning")
@pytest.mark.parametrize("epsilon", [1e3, 1e5, 1e7, 9e8])
@pytest.mark.parametrize("delta", [1e-200, 1e-5, 0.3])
def test_noise_that_is_far_too_small_costs_what_it_costs(epsilon, delta):
    # delta of Laplace noise is 1 - e^((x - epsilon)/2); of a sample of the rate q that is q times as much, at ln q less.
    at_least = epsilon + 2 * math.log1p(-delta) - 1e-6
    laplace_noise = LaplaceDpEvent(1 / epsilon)
    assert at_least <= epsilon_of([(laplace_noise, 1)], delta) <= epsilon * (1 + 1e-3)
    assert delta_of([(laplace_noise, 1)], epsilon / 2) == 1
    sampled = PoissonSampledDpEvent(0.5, laplace_noise)
    found = epsilon_of([(sampled, 1)], delta / 2)
    assert at_least - math.log(2) <= found <= epsilon * (1 + 1e-3)
    draws = BoundedRangeGaussianDpEvent(2, epsilon / 2)
    assert epsilon / 2 - 10 - 2 * math.log(1 / (1 - delta)) <= epsilon_of([(draws, 1)], delta)
