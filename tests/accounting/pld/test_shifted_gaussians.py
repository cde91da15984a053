import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution

from sparsedp.accounting import TruncatedSubsampledGaussianDpEvent, epsilon_of
from sparsedp.accounting.pld.grid import discretise
from sparsedp.accounting.pld.pairs import Gaussian
from sparsedp.accounting.pld.sampling import PoissonSampled
from sparsedp.accounting.pld.shifted_gaussians import (
    MOST_SHIFTS,
    SampledReplacement,
    gaussian_mixture,
    truncated_poisson_gaussian,
)


def deltas(loss, epsilons):
    return [float(np.maximum(loss.p - np.exp(e) * loss.q, 0).sum() + loss.infinity) for e in epsilons]


@pytest.mark.parametrize("reverse", [False, True])
def test_mixture_agrees_with_dp_accounting(reverse):
    shifts, probabilities, std = [0, 1, 2, 3], [0.7, 0.2, 0.05, 0.05], 1.5
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        std, shifts, probabilities, value_discretization_interval=1e-2
    )
    pmf = theirs._pmf_add if reverse else theirs._pmf_remove
    ours = discretise(gaussian_mixture(std, shifts, probabilities), 1e-2, 1e-15)
    ours = ours.reversed() if reverse else ours
    epsilons = [0.01, 0.1, 0.3]
    assert deltas(ours, epsilons) == pytest.approx([pmf.get_delta_for_epsilon(e) for e in epsilons], rel=1e-6)


def test_replacement_agrees_with_dp_accounting():
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1.5,
        sampling_prob=0.2,
        value_discretization_interval=1e-2,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    ours = discretise(SampledReplacement(1 / 1.5, 0.2), 1e-2, 1e-15)
    epsilons = [0.0, 0.1, 0.5, 1.0]
    assert deltas(ours, epsilons) == pytest.approx(
        [theirs.get_delta_for_epsilon(e) for e in epsilons], rel=1e-6
    )


def test_the_inverse_of_the_loss():
    mixture = gaussian_mixture(0.7, [0, 1, 5], [0.9, 0.09, 0.01])
    x = np.linspace(-3, 8, 200)
    losses = mixture.loss(x)
    assert mixture._inverse_loss(losses) == pytest.approx(x, abs=1e-9)
    assert np.isneginf(mixture._inverse_loss(np.array([-5.0, -0.2]))).all()


@pytest.mark.parametrize("far", [1e2, 1e4, 4e4])
def test_the_inverse_holds_beside_a_rare_shift_far_away(far):
    # Interpolation alone would be off by the distance between two points of its table: 5 at a shift of 4e4.
    mixture = gaussian_mixture(1.0, [0, 1, 5, far], [0.9, 0.09, 0.01 - 1e-30, 1e-30])
    x = np.linspace(-3, 8, 200)
    losses = mixture.loss(x)
    assert mixture._inverse_loss(losses) == pytest.approx(x, abs=1e-9)


def test_shifts_that_protect_nothing_are_infinite_losses():
    mixture = gaussian_mixture(1.0, [0, 1, 1e5], [0.7, 0.2, 0.1])
    assert mixture.shifts == (0, 1)
    assert mixture.infinity == pytest.approx(0.1)
    p, q = mixture.cells(np.array([0.0]))
    assert p.sum() == pytest.approx(1)
    assert q.sum() == pytest.approx(1)
    assert gaussian_mixture(1e-300, [1.0], [1.0]).shifts == ()


def test_of_many_shifts_each_becomes_itself_or_a_larger_one():
    shifts = np.linspace(0, 3, 10_001)
    weights = np.random.default_rng(0).dirichlet(np.ones(10_001))
    mixture = gaussian_mixture(1.0, shifts, weights)
    assert len(mixture.shifts) <= MOST_SHIFTS
    assert math.fsum(mixture.probabilities) == pytest.approx(1)
    for point in (0.1, 1.0, 2.5):
        above = math.fsum(weights[shifts > point])
        found = sum(w for s, w in zip(mixture.shifts, mixture.probabilities, strict=True) if s > point)
        assert above - 1e-12 <= found <= above + 0.01


@pytest.mark.parametrize(
    ("size", "rate", "batch", "sigma"), [(20, 0.3, 6, 0.8), (50, 0.1, 9, 2.0), (7, 0.9, 6, 1.3)]
)
def test_a_truncated_batch_is_the_mixture_that_counting_all_batches_gives(size, rate, batch, sigma):
    """Over how many of the others are sampled: with `batch` or more the record takes the place of one of them."""
    others = range(size)
    chance = [math.comb(size - 1, k) * rate**k * (1 - rate) ** (size - 1 - k) for k in others]
    full = sum(chance[k] for k in others if k >= batch)
    present = sum(chance[k] * rate * batch / (k + 1) for k in others if k >= batch) / full
    pair = truncated_poisson_gaussian(size, rate, batch, sigma)
    assert pair.weight == pytest.approx(full, rel=1e-9)
    assert pair.first.mu == pytest.approx(2 / sigma)
    assert pair.first.rate == pytest.approx(present, rel=1e-9)
    assert pair.second == PoissonSampled(Gaussian(1 / sigma), rate)


def test_truncation_costs_and_certainty_of_no_truncation_does_not():
    def epsilon(batch):
        return epsilon_of([(TruncatedSubsampledGaussianDpEvent(1000, 0.1, batch, 1.0), 10)], 1e-6)

    assert epsilon(1000) < epsilon(130) < epsilon(110) < epsilon(90)


@pytest.mark.parametrize(
    ("shifts", "probabilities", "name"),
    [
        ([], [], "sampling_probs"),
        ([0, 1], [1.0], "sampling_probs"),
        ([-1, 1], [0.5, 0.5], "sensitivities"),
        ([0, 1], [0.5, 0.4], "sampling_probs"),
        ([0, 1], [0.5, math.nan], "sampling_probs"),
        ([0, 1], [1.5, -0.5], "sampling_probs"),
        ([0, math.nan], [0.5, 0.5], "sensitivities"),
        ([0, math.inf], [0.5, 0.5], "sensitivities"),
    ],
)
def test_bad_mixtures_are_named(shifts, probabilities, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        gaussian_mixture(1.0, shifts, probabilities)
