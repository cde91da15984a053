import math

import numpy as np
import pytest
from scipy.stats import beta, laplace

from sparsedp.accounting import LaplaceDpEvent, PureDpEvent, SparseVectorDpEvent, epsilon_of


def first_positive(value, count, last, threshold_scale, query_scale):
    """P(`count` queries of `value` stay below the noisy threshold 0, and then one of value `last` passes it)."""
    rho = np.linspace(-150, 150, 600_001)
    log_negatives = count * laplace.logcdf(rho - value, scale=query_scale)
    log_positive = laplace.logsf(rho - last, scale=query_scale)
    density = np.exp(laplace.logpdf(rho, scale=threshold_scale) + log_negatives + log_positive)
    return float(np.trapezoid(density, rho))


@pytest.mark.parametrize(("threshold_scale", "query_scale"), [(2.0, 4.0), (5.0, 3.0)])
def test_a_round_loses_at_most_what_is_claimed_and_nearly_that(threshold_scale, query_scale):
    claimed = SparseVectorDpEvent(1, threshold_scale, query_scale).round_epsilon
    losses = []
    for count in (0, 10, 1000, 100_000):
        # Neighbours: every negative rises by one, the positive falls by one.
        one = first_positive(-30.0, count, -30.0, threshold_scale, query_scale)
        two = first_positive(-29.0, count, -31.0, threshold_scale, query_scale)
        losses.append(math.log(one / two))
    assert max(losses) <= claimed + 1e-6
    # With the query noise counted once instead of twice the claim would be broken.
    assert max(losses) > 1 / threshold_scale + 1 / query_scale


def test_rounds_and_answers_compose():
    event = SparseVectorDpEvent(5, 20.0, 40.0, 25.0)
    parts = [(PureDpEvent(1 / 20 + 2 / 40), 5), (LaplaceDpEvent(25.0), 5)]
    assert epsilon_of([(event, 3)], 1e-6) == pytest.approx(
        epsilon_of([(e, 3 * n) for e, n in parts], 1e-6), rel=1e-9
    )


def test_pure_composition_is_the_limit_of_small_delta():
    event = SparseVectorDpEvent(3, 10.0, 20.0)
    assert epsilon_of([(event, 1)], 1e-12) == pytest.approx(3 * event.round_epsilon, rel=3e-4)
    # Many rounds gain from advanced composition.
    many = SparseVectorDpEvent(1000, 100.0, 200.0)
    assert epsilon_of([(many, 1)], 1e-6) < 0.3 * 1000 * many.round_epsilon


def test_simulated_sparse_vector_is_not_caught():
    """Clopper-Pearson on 4e5 runs of the mechanism, at the event the exact analysis points to."""
    generator, size, count = np.random.default_rng(3), 400_000, 50
    threshold_scale, query_scale = 0.5, 1.0
    hits = []
    for value, last in ((-3.0, -3.0), (-2.0, -4.0)):
        rho = generator.laplace(0, threshold_scale, size)
        # The largest of `count` noisy negatives, by inversion.
        largest = value + laplace.ppf(generator.random(size) ** (1 / count), scale=query_scale)
        hits.append(int(np.sum((largest < rho) & (last + generator.laplace(0, query_scale, size) >= rho))))
    low = beta.ppf(1e-9, hits[0], size - hits[0] + 1)
    high = beta.ppf(1 - 1e-9, hits[1] + 1, size - hits[1])
    claimed = SparseVectorDpEvent(1, threshold_scale, query_scale).round_epsilon
    assert math.log(low / high) <= claimed
    # The same audit catches a claim of half the cost.
    assert math.log(low / high) > claimed / 2
