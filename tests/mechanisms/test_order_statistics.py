import math

import numpy as np
import pytest
from scipy import stats

from sparsedp.mechanisms.order_statistics import (
    _running_sum,
    choose_largest,
    largest_gumbels,
    largest_laplaces,
    largest_normals,
)

FALSE_ALARM = 1e-9
LAWS = [(largest_normals, stats.norm), (largest_laplaces, stats.laplace), (largest_gumbels, stats.gumbel_r)]


@pytest.mark.parametrize(("largest", "law"), LAWS)
@pytest.mark.parametrize(("m", "rank"), [(1, 0), (5, 0), (5, 2), (5, 4), (10**12, 0), (10**12, 3)])
def test_each_order_statistic_has_its_law(largest, law, m, rank, stream):
    draws = np.array([largest(m, k=rank + 1, stream=stream)[rank] for _ in range(8_000)])
    # The tail probability of the (rank+1)-th largest of m uniforms is Beta(rank+1, m-rank).
    beta = stats.beta(rank + 1, m - rank)
    assert stats.kstest(law.sf(draws), beta.cdf).pvalue > FALSE_ALARM
    # A wrong scale is noticed.
    assert stats.kstest(law.sf(1.3 * draws), beta.cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize(("largest", "law"), LAWS)
def test_all_of_them_together_are_an_ordered_sample(largest, law, stream):
    draws = np.concatenate([largest(50, k=50, stream=stream) for _ in range(2_000)])
    assert stats.kstest(draws, law.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(1.05 * draws, law.cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize(("largest", "law"), LAWS)
def test_decreasing_finite_and_no_more_than_there_are(largest, law, stream):
    draws = largest(10**18, k=10**5, stream=stream)
    assert np.all(np.diff(draws) <= 0)
    assert np.isfinite(draws).all()
    assert largest(3, k=10, stream=stream).size == 3
    assert largest(0, k=10, stream=stream).size == 0
    assert np.isfinite(largest(10**5, k=10**5, stream=stream)).all()


def test_ties_do_not_tell_touched_rows_from_others(stream):
    """All keys are equal: each row is chosen as often as any other."""
    ids, size, k, runs = np.arange(0, 40, 2), 40, 10, 4_000
    zeros = np.zeros(20, dtype=np.int64)
    chosen = np.zeros(size)
    for _ in range(runs):
        chosen[choose_largest(ids, zeros, zeros, size, k=k, stream=stream)] += 1
    assert chosen.sum() == runs * k
    spread = math.sqrt(runs * 0.25 * 0.75)
    assert np.abs(chosen - runs * 0.25).max() < 7 * spread


def test_the_largest_are_chosen_and_only_the_last_places_are_drawn(stream):
    ids, size = np.array([2, 5, 9]), 12
    keys, others = np.array([7, 3, 2**61]), np.array([5, 3, 3, -1])
    for _ in range(50):
        found = choose_largest(ids, keys, others, size, k=4, stream=stream)
        assert {2, 9} <= set(found.tolist())
        assert found.size == 4


def test_running_sums_lose_nothing():
    terms = np.full(200_000, 0.1)
    exact = [math.fsum(terms[:n]) for n in (1, 10, 1000, 200_000)]
    assert _running_sum(terms)[[0, 9, 999, 199_999]] == pytest.approx(exact, rel=2.0**-51)
    assert np.cumsum(terms)[-1] != pytest.approx(exact[-1], rel=2.0**-43)
