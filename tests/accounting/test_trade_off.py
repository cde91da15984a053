"""Trade-off curves: those of closed forms, duality with delta, and what an attacker with the best test reaches."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sparsedp.accounting import (
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    TradeOffCurve,
    analytic_gaussian_delta,
    analytic_gaussian_epsilon,
    delta_of,
    epsilon_of,
    mu_of,
    trade_off_curve,
)
from sparsedp.accounting import trade_off as module

RATES = (0.0, 1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0)


def sampled(rate, sigma):
    return PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))


def gaussian(rate, mu):
    return norm.cdf(norm.isf(rate) - mu)


@pytest.mark.parametrize("mu", [0.01, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("recognised", [True, False])
def test_the_curve_of_a_gaussian(mu, recognised):
    event = GaussianDpEvent(1 / mu) if recognised else MixtureOfGaussiansDpEvent(1 / mu, (1.0,), (1.0,))
    curve = trade_off_curve([(event, 1)])
    for rate in RATES:
        exact = gaussian(rate, mu)
        assert exact - 3e-4 * min(mu, 1) <= curve(rate) <= exact + 1e-12
    assert curve.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-3)
    assert curve.true_positive_rate(0.01) == 1 - curve(0.01)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (0.5, 1e-3), (0.0, 0.2), (8.0, 1e-6)])
def test_the_curve_of_epsilon_and_delta_alone(epsilon, delta):
    curve = TradeOffCurve([(epsilon, delta)])
    for rate in RATES:
        lines = (0.0, 1 - delta - math.exp(epsilon) * rate, math.exp(-epsilon) * (1 - delta - rate))
        assert curve(rate) == pytest.approx(max(lines), abs=1e-12)
    assert curve.advantage == pytest.approx(
        (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1), rel=1e-12
    )


def test_nothing_and_everything():
    nothing, everything = trade_off_curve([]), trade_off_curve([(NonPrivateDpEvent(), 1)])
    for rate in RATES:
        assert nothing(rate) == pytest.approx(1 - rate, abs=1e-12)
        assert everything(rate) == 0
    assert (nothing.advantage, everything.advantage) == (0, 1)
    assert (nothing.epsilon_at(1e-6), everything.epsilon_at(1e-6)) == (0, math.inf)
    assert (nothing.mu(1e-6), everything.mu(1e-6)) == (0, math.inf)
    assert TradeOffCurve([(math.inf, 1e-6)]).advantage == 1
    assert TradeOffCurve([(1000.0, 1e-6)]).advantage == 1


steps = st.builds(sampled, st.floats(1e-3, 1.0), st.floats(0.7, 5.0))
kinds = st.one_of(
    steps,
    st.builds(LaplaceDpEvent, st.floats(0.5, 10.0)),
    st.builds(PureDpEvent, st.floats(0.01, 2.0)),
    st.builds(GaussianDpEvent, st.floats(0.3, 10.0)),
)
mixes = st.lists(st.tuples(kinds, st.integers(1, 20)), min_size=1, max_size=2)


def check_properties(events, against_delta_of):
    curve = trade_off_curve(events)
    x, f = curve.corners
    assert np.all(np.diff(x) >= 0)
    assert np.all(np.diff(f) <= 0)
    assert np.all(f <= 1 - x + 1e-12)
    chord = f[:-2] + (f[2:] - f[:-2]) * (x[1:-1] - x[:-2]) / np.maximum(x[2:] - x[:-2], 1e-300)
    assert np.all(f[1:-1] <= chord + 1e-12)  # convex
    for rate in RATES[1:-1]:
        mirrored = curve(curve(rate))  # its own inverse, where it is not 0
        assert mirrored == pytest.approx(rate, rel=1e-6, abs=1e-9) or curve(rate) == 0 or mirrored <= rate
    # Duality: delta at epsilon is the largest 1 - f(x) - e^epsilon x, and f the largest of these lines.
    last = curve.last_epsilon
    for share in (0.0, 0.1, 0.3, 0.6):
        delta = curve.delta_at(share * last)
        assert all(
            curve(rate) >= 1 - delta - math.exp(share * last) * rate - 1e-12 for rate in (*RATES, *x[::50])
        )
        if share in against_delta_of:
            bound = delta_of(events, share * last)
            assert 0.995 * bound - 1e-10 <= delta <= 1.02 * bound + 1e-9
    assert curve.advantage == pytest.approx(curve.delta_at(0.0), rel=1e-12)
    # One more release makes every test better.
    more = trade_off_curve([*events, (LaplaceDpEvent(2.0), 1)])
    assert all(more(rate) <= curve(rate) + 1e-3 * curve.advantage for rate in RATES)
    assert more.advantage > curve.advantage - 1e-9


@given(events=mixes)
@settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate])
def test_a_curve_is_convex_symmetric_and_dual_to_delta(events):
    check_properties(events, against_delta_of=(0.3,))


@pytest.mark.slow
@given(events=mixes)
@settings(max_examples=150, deadline=None, derandomize=True, phases=[Phase.generate])
def test_many_curves_are_convex_symmetric_and_dual_to_delta(events):
    check_properties(events, against_delta_of=(0.0, 0.1, 0.3, 0.6))


@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 0.7), (0.5, 1.0), (0.01, 2.0)])
def test_no_threshold_test_of_a_sampled_gaussian_is_below_the_curve_and_one_is_on_it(rate, sigma):
    curve = trade_off_curve([(sampled(rate, sigma), 1)])
    nearest = math.inf
    for threshold in np.linspace(-4 * sigma, 1 + 5 * sigma, 200):
        outsider = norm.sf(threshold / sigma)
        member = (1 - rate) * outsider + rate * norm.sf((threshold - 1) / sigma)
        for false_positives, false_negatives in ((outsider, 1 - member), (1 - member, outsider)):
            assert curve(false_positives) <= false_negatives + 1e-12
            nearest = min(nearest, false_negatives - curve(false_positives))
    assert nearest < 1e-5
    assert curve.advantage == pytest.approx(rate * (2 * norm.cdf(0.5 / sigma) - 1), rel=1e-3)


def test_epsilon_and_delta_from_the_curve():
    events = [(sampled(0.01, 1.0), 300)]
    curve = trade_off_curve(events)
    for delta in (1e-3, 1e-6, 1e-9):
        exact = epsilon_of(events, delta)
        assert exact * (1 - 1e-3) <= curve.epsilon_at(delta) <= exact * (1 + 1e-3)
        assert curve.delta_at(curve.epsilon_at(delta)) == pytest.approx(delta, rel=1e-6)
    assert curve.epsilon_at(0.9) == 0
    assert curve.epsilon_at(1e-14) == math.inf  # below what the curve knows
    assert curve.delta_at(1e9) == curve.delta_at(curve.last_epsilon)


def test_mu_is_that_of_the_gaussians():
    assert mu_of([(GaussianDpEvent(2.0), 9)], 1e-6) == 1.5
    grid = trade_off_curve([(MixtureOfGaussiansDpEvent(2.0, (1.0,), (1.0,)), 9)])
    assert 1.5 * (1 - 1e-5) <= grid.mu(1e-9) <= 1.5 * (1 + 3e-3)


@pytest.mark.parametrize(
    "events",
    [[(sampled(0.01, 1.0), 1000)], [(LaplaceDpEvent(2.0), 10)], [(sampled(0.01, 0.6), 50)]],
    ids=["training", "laplace", "rare"],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_mu_is_the_least_whose_gaussian_is_no_more_private_up_to_delta(events, delta):
    mu, curve = mu_of(events, delta), trade_off_curve(events)

    def excess(mu, epsilon, found):
        return found - analytic_gaussian_delta(epsilon, mu) - delta

    for epsilon in (0.0, 0.2 * curve.last_epsilon):
        assert excess(mu, epsilon, delta_of(events, epsilon)) <= 1e-3 * delta_of(events, epsilon)
    epsilons = np.geomspace(1e-4, 1, 600) * curve.last_epsilon
    found = [curve.delta_at(epsilon) for epsilon in epsilons]
    assert all(excess(mu, *pair) <= 1e-12 for pair in zip(epsilons, found, strict=True))
    assert any(excess(0.98 * mu, *pair) > 0 for pair in zip(epsilons, found, strict=True))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_groups_of_a_gaussian_are_a_gaussian(size):
    group = trade_off_curve([(GaussianDpEvent(5.0), 1)]).group(size)
    mu = size / 5
    assert all(gaussian(rate, mu) - 2e-3 <= group(rate) <= gaussian(rate, mu) + 1e-12 for rate in RATES)
    exact = analytic_gaussian_epsilon(1e-5, mu)
    assert exact <= group.epsilon_at(1e-5) <= 1.002 * exact


@pytest.mark.parametrize("size", [2, 5])
def test_groups_under_laplace_noise_are_moved_that_far(size):
    group = trade_off_curve([(LaplaceDpEvent(4.0), 1)]).group(size)
    moved = trade_off_curve([(LaplaceDpEvent(4.0 / size), 1)])
    for rate in RATES:
        # Noise e^-|x|: to move twice is to move twice as far.
        assert group(rate) == pytest.approx(moved(rate), abs=2e-3)


def test_groups_of_randomised_response_by_hand():
    curve = TradeOffCurve([(1.0, 0.0)])
    for size in (1, 2, 3, 6):
        group = curve.group(size)
        for rate in RATES:
            power = rate
            for _ in range(size):
                power = 1 - curve(power)
            assert 1 - group(rate) == pytest.approx(power, abs=1e-3)
            assert 1 - group(rate) >= power - 1e-12
    assert curve.group(1) is curve


def test_the_worst_of_several_is_below_all_of_them():
    curves = [
        trade_off_curve([(GaussianDpEvent(2.0), 1)]),
        TradeOffCurve([(0.1, 0.05)]),
        trade_off_curve([(LaplaceDpEvent(2.0), 1)]),
    ]
    worst = TradeOffCurve.worst_of(curves)
    for rate in RATES:
        assert worst(rate) <= min(curve(rate) for curve in curves) + 1e-12
    for epsilon in (0.0, 0.3, 1.0):
        largest = max(curve.delta_at(epsilon) for curve in curves)
        assert largest <= worst.delta_at(epsilon) + 1e-12 <= 1.01 * largest + 1e-6
    assert TradeOffCurve.worst_of(curves[:1]) is curves[0]


def test_a_pair_that_holds_raises_the_curve():
    loose = TradeOffCurve([(2.0, 0.0)])
    tighter = loose.with_point(0.5, 1e-3)
    assert tighter.advantage == TradeOffCurve([(0.5, 1e-3)]).advantage < loose.advantage
    assert tighter(1e-4) == pytest.approx(max(loose(1e-4), TradeOffCurve([(0.5, 1e-3)])(1e-4)))


def test_a_curve_goes_through_json_and_pickle():
    curve = trade_off_curve([(sampled(0.01, 0.8), 500)])
    written = json.loads(json.dumps(curve.to_json(1e-6)))
    again = TradeOffCurve(written["profile"])
    assert written["advantage"] == curve.advantage == again.advantage
    for name, rate in written["true_positive_rates"].items():
        assert rate == curve.true_positive_rate(float(name))
        assert rate == pytest.approx(again.true_positive_rate(float(name)), rel=1e-9)
    for rate in RATES:
        assert curve(rate) - 0.02 <= again(rate) <= curve(rate) + 1e-12
    assert written["mu"] == curve.mu(1e-6)
    assert again.mu(1e-6) == pytest.approx(curve.mu(1e-6), rel=0.05)
    assert pickle.loads(pickle.dumps(curve))(0.1) == curve(0.1)
    assert trade_off_curve([(NonPrivateDpEvent(), 1)]).to_json(1e-6)["mu"] is None


def test_nothing_is_computed_before_it_is_read(monkeypatch):
    def refuse(_):
        raise AssertionError("computed")

    monkeypatch.setattr(module, "privacy_profile", refuse)
    curve = trade_off_curve([(GaussianDpEvent(1.0), 1)]).with_point(1.0, 1e-6).group(3)
    with pytest.raises(AssertionError, match="computed"):
        curve(0.1)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda curve: curve(-0.1), "false_positive_rate"),
        (lambda curve: curve(math.nan), "false_positive_rate"),
        (lambda curve: curve.true_positive_rate(1.5), "false_positive_rate"),
        (lambda curve: curve.delta_at(-1.0), "epsilon"),
        (lambda curve: curve.epsilon_at(0.0), "delta"),
        (lambda curve: curve.mu(2.0), "delta"),
        (lambda curve: curve.group(0), "size"),
        (lambda curve: curve.group(1.5), "size"),
        (lambda curve: curve.with_point(-1.0, 0.1), "epsilon"),
        (lambda curve: TradeOffCurve([(1.0, 2.0)]), "delta"),
        (lambda curve: mu_of([(GaussianDpEvent(1.0), 1)], 0.0), "delta"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        call(TradeOffCurve([(1.0, 1e-3)]))


def test_deltas_below_the_last_digit_of_one_are_kept():
    """A difference of probabilities would make them 0, which nothing but pure DP has."""
    curve = TradeOffCurve([(1.0, 1e-20)])
    assert curve.delta_at(1.0) == pytest.approx(1e-20)
    assert curve.group(2).delta_at(2.0) == pytest.approx((1 + math.e) * 1e-20)
    assert curve.group(2).delta_at(1.9) >= 1e-20
    assert TradeOffCurve.worst_of([curve, TradeOffCurve([(1.0, 1e-30)])]).delta_at(1.0) == pytest.approx(
        1e-20
    )
    rare = trade_off_curve([(sampled(1e-18, 1.0), 1)])
    one = 1e-18 * math.erf(1 / math.sqrt(8))
    assert rare.advantage >= one
    assert rare.delta_at(0.0) >= one
    assert rare.group(3).delta_at(0.0) >= one
    assert TradeOffCurve([(0.0, 3e-19), (2e-18, 0.0)]).group(2).delta_at(0.0) >= 3e-19
    assert TradeOffCurve([(1.0, 0.0)]).group(5).delta_at(5.0) == 0.0


@pytest.mark.parametrize("point", [(7.8e-321, 0.0), (5.8e-301, 7.7e-287), (2.1e-13, 3.5e-7), (1e-12, 1e-3)])
def test_epsilons_whose_lines_nearly_coincide_claim_no_more_than_the_lines(point):
    curve = TradeOffCurve([(0.0, 3.6e-4), point, (0.9, 4e-182)])
    for rate in np.linspace(0.0, 1.0, 101):
        assert curve(rate) <= 1 - rate + 1e-15


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 5.0, 30.0])
def test_the_mu_of_pure_dp_needs_no_delta(epsilon):
    # The corner of randomised response has both rates 1 / (1 + e^epsilon).
    exact = -2 * norm.ppf(1 / (1 + math.exp(epsilon)))
    assert exact <= TradeOffCurve([(epsilon, 0.0)]).mu(0.0) <= exact * (1 + 1e-3)


def test_mu_without_a_delta_where_there_is_none_and_where_there_is_no_end():
    assert TradeOffCurve([(0.0, 0.0)]).mu(0.0) == pytest.approx(0, abs=1e-12)
    assert TradeOffCurve([(1.0, 1e-9)]).mu(0.0) == math.inf
    assert TradeOffCurve([(0.0, 1.0)]).mu(0.0) == math.inf
    assert TradeOffCurve([(1.0, 0.0)]).to_json(0.0)["mu"] == pytest.approx(1.23203538)


def test_noise_that_protects_nothing_has_a_curve_and_groups():
    for event in (GaussianDpEvent(0.05), GaussianDpEvent(1e-3), LaplaceDpEvent(1e-3)):
        curve = trade_off_curve([(event, 1)])
        assert curve.advantage == pytest.approx(1, abs=1e-8)
        assert curve.group(1000)(0.01) == 0
