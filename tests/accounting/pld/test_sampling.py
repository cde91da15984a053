import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    analytic_gaussian_delta,
    delta_of,
    epsilon_of,
)
from sparsedp.accounting.pld.pairs import Gaussian
from sparsedp.accounting.pld.sampling import PoissonSampled, sampled_loss, unsampled_loss


@given(loss=st.floats(-30, 900), rate=st.floats(1e-9, 1))
def test_sampled_and_unsampled_losses_are_inverse(loss, rate):
    there = sampled_loss(np.array([loss]), rate)
    back = unsampled_loss(there, rate)[0]
    # Far below zero the sampled loss is ln(1 - rate) to the last bit, and nothing can be told from it.
    if rate * math.exp(min(loss, 0.0)) > 1e-6:
        assert back == pytest.approx(loss, rel=1e-6, abs=1e-6)
    assert there[0] >= math.log1p(-rate) - 1e-12 if rate < 1 else True


def test_there_is_no_loss_below_the_least():
    assert unsampled_loss(np.array([math.log1p(-0.3) - 1e-9, -5.0]), 0.3).tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.7])
def test_the_remove_direction_has_the_amplified_delta(rate):
    pair = PoissonSampled(Gaussian(1.0), rate)
    for inner in (0.3, 1.0, 3.0):
        loss = float(sampled_loss(np.array([inner]), rate)[0])
        p, q = pair.cells(np.linspace(loss, pair.span(1e-30)[1], 100_001))
        delta = (p[1:] - math.exp(loss) * q[1:]).sum()
        assert delta == pytest.approx(rate * analytic_gaussian_delta(inner, 1.0), rel=1e-9)


def test_amplification_of_pure_dp_is_not_linear():
    # A sampled epsilon-DP mechanism is ln(1 + rate (e^epsilon - 1))-DP, not (rate epsilon)-DP.
    rate, epsilon = 0.1, 3.0
    reached = epsilon_of([(PoissonSampledDpEvent(rate, PureDpEvent(epsilon)), 1)], 1e-12)
    assert reached == pytest.approx(math.log1p(rate * math.expm1(epsilon)), rel=3e-4)
    assert reached > 3 * rate * epsilon


def test_whole_and_empty_samples():
    gaussian = GaussianDpEvent(1.0)
    assert delta_of([(PoissonSampledDpEvent(1.0, gaussian), 1)], 1.0) == analytic_gaussian_delta(1.0, 1.0)
    assert delta_of([(PoissonSampledDpEvent(0.0, gaussian), 1)], 1.0) == 0


def test_two_releases_of_one_batch_are_not_two_batches():
    # Accounted as if each had its own batch, a map and a gradient with sigmas 0.8 and 0.8 seem to cost 4.29.
    apart = [(PoissonSampledDpEvent(0.01, GaussianDpEvent(0.8)), 2000)]
    together = [(PoissonSampledDpEvent(0.01, GaussianDpEvent(0.8 / math.sqrt(2))), 1000)]
    assert epsilon_of(apart, 1e-5) == pytest.approx(4.29, abs=0.005)
    assert epsilon_of(together, 1e-5) == pytest.approx(8.97, abs=0.005)


def test_shuffled_batches_are_not_poisson_batches():
    # Criteo-Kaggle, one epoch in batches of 2048, sigma 0.61: as Poisson sampling 0.63. In a shuffled epoch every example
    # is in exactly one batch, and whoever knows which sees a plain Gaussian.
    n, batch, sigma = 45_840_617, 2048, 0.61
    step = PoissonSampledDpEvent(batch / n, GaussianDpEvent(sigma))
    assert epsilon_of([(step, n // batch)], 1 / n) == pytest.approx(0.63, abs=0.005)
    assert epsilon_of([(GaussianDpEvent(sigma), 1)], 1 / n) > 9.8


def test_dense_layers_and_tables_clipped_apart_cost_more():
    # Two groups with the full clipping norm each are one Gaussian of sigma / sqrt(2).
    n, batch, sigma = 45_840_617, 2048, 0.61
    step = PoissonSampledDpEvent(batch / n, GaussianDpEvent(sigma / math.sqrt(2)))
    assert 4.7 < epsilon_of([(step, n // batch)], 1 / n) < 5.0


def test_a_second_clipping_counted_once_understates_a_published_run():
    # WIDE: 200,000 examples, batch 20, 20 epochs, sigma 0.5 of min(S1/b, S2) = 0.05 where the sensitivity is 0.1.
    def epsilon(sigma):
        return epsilon_of([(PoissonSampledDpEvent(1e-4, GaussianDpEvent(sigma)), 200_000)], 1e-5)

    assert epsilon(0.5) < 20 < 30 < 51 < epsilon(0.5 * 0.05 / 0.1)
