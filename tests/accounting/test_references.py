"""Epsilons against references that share no code with the accountant: sums over densities that bracket the truth,
closed forms, rational arithmetic, and dp-accounting.

An epsilon is never below the truth, and above it by at most twice `tolerance`, five times for pure DP alone. The quick
suite draws a few compositions, the slow one many and long ones.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.fft import irfft, next_fast_len, rfft
from scipy.stats import binom, laplace, norm

from sparsedp.accounting import (
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    analytic_gaussian_epsilon,
    trade_off_curve,
)
from sparsedp.accounting.pld.composition import delta_bound, epsilon_answer, tolerance

STEP = 2.0**-14  # of the reference's losses
CELLS = 40_001  # of its outputs
NEGLIGIBLE = 1e-13  # mass that the reference may lose or misplace


def ours(events, delta):
    answer = epsilon_answer(events, delta)
    assert answer.converged
    return answer.epsilon


@dataclass
class Losses:
    """Probabilities (of the first law) that the loss is at least `low` and at most `high`, in multiples of STEP."""

    low: np.ndarray
    high: np.ndarray
    mass: np.ndarray


def of_cells(p, q, log_ratio):
    """Both directions of a pair on cells of outputs, where `log_ratio` at a cell's ends encloses its losses."""
    low, high = np.minimum(*log_ratio), np.maximum(*log_ratio)
    return (
        Losses(np.floor(low / STEP), np.ceil(high / STEP), p),
        Losses(np.floor(-high / STEP), np.ceil(-low / STEP), q),
    )


def cells_of(cdfs, densities, ends):
    """A pair of laws of one real number. P and Q of a cell are differences of distribution functions; the loss,
    monotone, lies between its values at the ends of the cell."""
    x = np.linspace(*ends, CELLS)
    (cdf_p, cdf_q), (log_p, log_q) = cdfs, densities
    p = np.diff(np.concatenate([[0.0], cdf_p(x), [1.0]]))
    q = np.diff(np.concatenate([[0.0], cdf_q(x), [1.0]]))
    ratio = log_p(x) - log_q(x)
    # Beyond the ends there is next to nothing; it counts as the loss at the end.
    ends_of_cells = np.concatenate([ratio[:1], ratio]), np.concatenate([ratio, ratio[-1:]])
    return of_cells(p, q, ends_of_cells)


def mixture(std, shifts, weights):
    """sum of weights N(shift, std^2) against N(0, std^2)."""
    shifts, weights = np.array(shifts)[:, None], np.array(weights)[:, None]
    return cells_of(
        (lambda x: (weights * norm.cdf(x, shifts, std)).sum(axis=0), lambda x: norm.cdf(x, 0, std)),
        (
            lambda x: np.log((weights * norm.pdf(x, shifts, std)).sum(axis=0)),
            lambda x: norm.logpdf(x, 0, std),
        ),
        (-8 * std, shifts.max() + 8 * std),
    )


def sampled_laplace(rate, scale):
    shifted, plain = laplace(1, scale), laplace(0, scale)
    return cells_of(
        (lambda x: rate * shifted.cdf(x) + (1 - rate) * plain.cdf(x), plain.cdf),
        (lambda x: np.log(rate * shifted.pdf(x) + (1 - rate) * plain.pdf(x)), plain.logpdf),
        (-1.0, 2.0),  # the loss is constant outside the two centres
    )


def of_atoms(p, q):
    ratio = np.log(p) - np.log(q)
    return of_cells(p, q, (ratio, ratio))


def discrete_laplace(parameter, sensitivity):
    x = np.arange(-math.ceil(40 / parameter), sensitivity + math.ceil(40 / parameter) + 1)
    p = math.tanh(parameter / 2) * np.exp(-parameter * np.abs(x - sensitivity))
    q = math.tanh(parameter / 2) * np.exp(-parameter * np.abs(x))
    return of_atoms(p, q)


def reference(event):
    """The losses of one event in both directions, from its definition."""
    if isinstance(event, GaussianDpEvent):
        return mixture(event.noise_multiplier, [1.0], [1.0])
    if isinstance(event, LaplaceDpEvent):
        return sampled_laplace(1.0, event.noise_multiplier)
    if isinstance(event, DiscreteLaplaceDpEvent):
        return discrete_laplace(event.noise_parameter, event.sensitivity)
    if isinstance(event, MixtureOfGaussiansDpEvent):
        return mixture(event.standard_deviation, event.sensitivities, event.sampling_probs)
    if isinstance(event, PureDpEvent):
        truth = 1 / (1 + math.exp(-event.epsilon))
        return of_atoms(np.array([truth, 1 - truth]), np.array([1 - truth, truth]))
    rate, inner = event.sampling_probability, event.event
    if isinstance(inner, LaplaceDpEvent):
        return sampled_laplace(rate, inner.noise_multiplier)
    return mixture(inner.noise_multiplier, [0.0, 1.0], [1 - rate, rate])


def composed(parts, rounded):
    """(least loss, masses) of a sum of independent losses, in multiples of STEP."""
    histograms = []
    for losses, count in parts:
        index = getattr(losses, rounded).astype(np.int64)
        histogram = np.bincount(index - index.min(), losses.mass)
        histograms.append((index.min(), histogram, count))
    length = sum(count * (len(masses) - 1) for _, masses, count in histograms) + 1
    size = next_fast_len(length, real=True)
    spectrum = np.prod([rfft(masses, size) ** count for _, masses, count in histograms], axis=0)
    return sum(count * first for first, _, count in histograms), irfft(spectrum, size)[:length]


def bracket(events):
    """delta(epsilon) from below and from above, of the worse direction."""
    both = [(reference(event), count) for event, count in events]
    sides = {
        rounded: [composed([(pair[way], count) for pair, count in both], rounded) for way in (0, 1)]
        for rounded in ("low", "high")
    }

    def delta(epsilon, rounded):
        worst = 0.0
        for first, masses in sides[rounded]:
            gap = STEP * (first + np.arange(len(masses))) - epsilon
            worst = max(worst, float((masses * -np.expm1(-np.maximum(gap, 0.0))).sum()))
        return worst

    return delta


def largest_loss(events):
    """What epsilons of pure DP add up to; infinite with Gaussian noise."""
    total = 0.0
    for event, count in events:
        if isinstance(event, PureDpEvent):
            total += count * event.epsilon
        elif isinstance(event, LaplaceDpEvent):
            total += count / event.noise_multiplier
        elif isinstance(event, DiscreteLaplaceDpEvent):
            total += count * event.noise_parameter * event.sensitivity
        elif isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, LaplaceDpEvent):
            rate, scale = event.sampling_probability, event.event.noise_multiplier
            total += count * math.log1p(rate * math.expm1(1 / scale))
        else:
            return math.inf
    return total


def allowed(events, epsilon):
    """How far above the truth an epsilon may be: further for losses with atoms only, where halving a grid need not help."""
    return (5 if largest_loss(events) < math.inf else 2) * tolerance(epsilon)


def check_against_densities(events, delta):
    """The reference's delta from below at our epsilon is within delta, and that from above, a little earlier, not."""
    epsilon, exact = ours(events, delta), bracket(events)
    assert exact(epsilon, "low") <= delta + NEGLIGIBLE
    if epsilon > (above := allowed(events, epsilon)):
        assert exact(epsilon - above, "high") >= delta - NEGLIGIBLE
    curve = trade_off_curve(events)
    for share in (0.0, 0.3, 0.8):
        found = curve.delta_at(share * epsilon)
        assert exact(share * epsilon, "low") <= found + NEGLIGIBLE
        # Between two points of its profile a curve is straight, also where the truth has a corner.
        assert found <= 1.02 * exact(share * epsilon - curve.last_epsilon / 200, "high") + 1e-9
    assert delta_bound(events, 0.5 * epsilon) >= exact(0.5 * epsilon, "low") - NEGLIGIBLE


rates = st.floats(0.01, 0.9)
KINDS = [
    st.builds(GaussianDpEvent, st.floats(1.0, 6.0)),
    st.builds(LaplaceDpEvent, st.floats(0.5, 5.0)),
    st.builds(DiscreteLaplaceDpEvent, st.floats(0.1, 1.5), st.integers(1, 4)),
    st.builds(PureDpEvent, st.floats(0.05, 2.0)),
    st.builds(PoissonSampledDpEvent, rates, st.builds(GaussianDpEvent, st.floats(0.8, 4.0))),
    st.builds(PoissonSampledDpEvent, rates, st.builds(LaplaceDpEvent, st.floats(0.5, 5.0))),
    st.builds(
        lambda std, rate: MixtureOfGaussiansDpEvent(
            std, tuple(map(float, range(4))), tuple(binom.pmf(range(4), 3, rate).tolist())
        ),
        st.floats(1.5, 6.0),
        rates,
    ),
]
mixes = st.lists(st.tuples(st.one_of(KINDS), st.integers(1, 3)), min_size=1, max_size=3)
deltas = st.sampled_from([1e-2, 1e-4, 1e-6, 1e-8])


@given(events=mixes, delta=deltas)
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
def test_epsilon_against_densities(events, delta):
    check_against_densities(events, delta)


@pytest.mark.slow
@given(events=mixes, delta=deltas)
@settings(max_examples=150, deadline=None, derandomize=True, phases=[Phase.generate])
def test_many_epsilons_against_densities(events, delta):
    check_against_densities(events, delta)


@pytest.mark.parametrize("kind", range(len(KINDS)))
@pytest.mark.slow
def test_self_compositions_against_densities(kind):
    @given(event=KINDS[kind], count=st.integers(4, 12), delta=deltas)
    @settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate])
    def check(event, count, delta):
        check_against_densities([(event, count)], delta)

    check()


def theirs(events, delta, grid):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, grid)
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def by_renyi(events, delta):
    accountant = RdpAccountant()
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


def check_against_dp_accounting(events, delta, grid):
    """Their losses are rounded upwards, by at most one grid step a copy."""
    found, upper = ours(events, delta), theirs(events, delta, grid)
    copies = sum(count for _, count in events)
    assert found <= upper + allowed(events, found)
    assert found >= upper - copies * grid - 1e-9


THEIRS = [kind for number, kind in enumerate(KINDS) if number != 3]  # they have no pure event
their_mixes = st.lists(st.tuples(st.one_of(THEIRS), st.integers(1, 30)), min_size=1, max_size=3)


@given(events=their_mixes, delta=deltas)
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
def test_epsilon_against_dp_accounting(events, delta):
    check_against_dp_accounting(events, delta, 2e-3)


@pytest.mark.slow
@given(events=their_mixes, delta=deltas)
@settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
def test_many_epsilons_against_dp_accounting(events, delta):
    check_against_dp_accounting(events, delta, 1e-3)
    if RdpAccountant().supports(ComposedDpEvent([event for event, _ in events])):
        assert ours(events, delta) <= by_renyi(events, delta) + allowed(events, ours(events, delta))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [10**3, 10**4, 10**5])
@pytest.mark.parametrize("sigma", [0.7, 2.0])
def test_long_trainings_against_dp_accounting(steps, sigma):
    """Their connected dots are above the truth by far less than a step of the grid a copy."""
    rate = min(0.5 * sigma / math.sqrt(steps), 0.1)
    events = [(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)]
    found, upper = ours(events, 1e-6), theirs(events, 1e-6, 1e-5)
    assert found <= upper + 2 * tolerance(found)
    assert found == pytest.approx(upper, rel=2e-3)
    assert found <= by_renyi(events, 1e-6)


def check_gaussians(sigma, steps, delta):
    """Certain mixtures are Gaussians that the accountant does not recognise: it composes them on its grid."""
    exact = analytic_gaussian_epsilon(delta, math.sqrt(steps) / sigma)
    found = ours([(MixtureOfGaussiansDpEvent(sigma, (1.0,), (1.0,)), steps)], delta)
    assert exact <= found <= exact + 2 * tolerance(exact)
    assert ours([(GaussianDpEvent(sigma), steps)], delta) == pytest.approx(exact, rel=1e-9)


gaussian_runs = {
    "mu": st.floats(0.05, 5.0),
    "steps": st.integers(1, 10**5),
    "delta": st.floats(1e-10, 1e-2),
}


@given(**gaussian_runs)
@settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate])
def test_gaussians_against_the_closed_form(mu, steps, delta):
    check_gaussians(math.sqrt(steps) / mu, steps, delta)


@pytest.mark.slow
@given(**gaussian_runs)
@settings(max_examples=150, deadline=None, derandomize=True, phases=[Phase.generate])
def test_many_gaussians_against_the_closed_form(mu, steps, delta):
    check_gaussians(math.sqrt(steps) / mu, steps, delta)


def check_pure(epsilon, steps, delta):
    """The optimal composition of pure DP (Kairouz, Oh and Viswanath 2015): a binomial number of truths."""
    truths = np.arange(steps + 1)
    mass = binom.pmf(truths, steps, 1 / (1 + math.exp(-epsilon)))
    losses = epsilon * (2.0 * truths - steps)

    def exact(at):
        return float((mass * -np.expm1(np.minimum(at - losses, 0.0))).sum())

    found = ours([(PureDpEvent(epsilon), steps)], delta)
    assert exact(found) <= delta * (1 + 1e-9)
    if found > (above := allowed([(PureDpEvent(epsilon), steps)], found)):
        assert exact(found - above) >= delta * (1 - 1e-9)


pure_runs = {"total": st.floats(0.1, 4.0), "steps": st.integers(1, 10**5), "delta": st.floats(1e-10, 1e-2)}


@given(**pure_runs)
@settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate])
def test_pure_dp_against_the_optimal_composition(total, steps, delta):
    check_pure(total / math.sqrt(steps), steps, delta)


@pytest.mark.slow
@given(**pure_runs)
@settings(max_examples=150, deadline=None, derandomize=True, phases=[Phase.generate])
def test_much_pure_dp_against_the_optimal_composition(total, steps, delta):
    check_pure(total / math.sqrt(steps), steps, delta)


def rational_epsilon(z, sensitivity, count, delta):
    """Epsilon of discrete Laplace noise with e^-parameter = z, composed: exact until the logarithm at the end."""
    once = {2 * k - sensitivity: (1 - z) / (1 + z) * z ** (sensitivity - k) for k in range(1, sensitivity)}
    once |= {sensitivity: 1 / (1 + z), -sensitivity: z**sensitivity / (1 + z)}
    masses = {0: Fraction(1)}
    for _ in range(count):
        sums: dict[int, Fraction] = {}
        for one, first in masses.items():
            for two, second in once.items():
                sums[one + two] = sums.get(one + two, Fraction(0)) + first * second
        masses = sums
    # A loss of k parameters is z^-k: delta(x) = sum of mass (1 - x z^k) over z^-k > x = e^epsilon.
    ordered = sorted(masses, reverse=True)
    upper = lower = Fraction(0)
    for k, following in itertools.pairwise(ordered):
        upper, lower = upper + masses[k], lower + masses[k] * z**k
        if (x := (upper - Fraction(delta)) / lower) >= z**-following:
            return math.log(x)
    raise AssertionError("epsilon is below all losses")


@pytest.mark.parametrize(("z", "sensitivity", "count"), [("1/2", 2, 40), ("1/2", 1, 100), ("2/3", 3, 20)])
def test_discrete_laplace_against_rational_arithmetic(z, sensitivity, count):
    """Why dp-accounting says more: its accountant rounds each copy's losses up to the grid ("privacy buckets"), by up to
    a whole step of it. Its other form, which connects the dots, agrees with the rational result, and so do we."""
    z, delta, grid = Fraction(z), 1e-6, 1e-3
    parameter = -math.log(z)
    event = DiscreteLaplaceDpEvent(parameter, sensitivity)
    exact = rational_epsilon(z, sensitivity, count, delta)
    assert exact - 1e-9 <= ours([(event, count)], delta) <= exact + 2 * tolerance(exact)
    buckets = theirs([(event, count)], delta, grid)
    assert exact + 2.7e-3 < buckets <= exact + count * grid
    dots = privacy_loss_distribution.from_discrete_laplace_mechanism(
        parameter, sensitivity, value_discretization_interval=grid, use_connect_dots=True
    )
    assert dots.self_compose(count).get_epsilon_for_delta(delta) == pytest.approx(exact, abs=1e-8)
