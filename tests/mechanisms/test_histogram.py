import tracemalloc
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.mechanisms import (
    exponential_top_k,
    sparse_vector,
    thresholded_counts,
    top_k_gaussian,
    top_k_gumbel,
    top_k_laplace,
)
from sparsedp.mechanisms.histogram import (
    check_choice,
    check_histogram,
    distinct_integers,
    sample_untouched,
    untouched_ids,
)
from sparsedp.randomness import NoiseSource

touched_sets = st.sets(st.integers(0, 40), max_size=41).map(lambda s: np.array(sorted(s), dtype=np.int64))


@given(touched_sets)
def test_ranks_count_through_the_untouched_rows(ids):
    size = 41
    expected = np.setdiff1d(np.arange(size), ids)
    assert np.array_equal(untouched_ids(ids, np.arange(size - ids.size)), expected)


@given(touched_sets, st.integers(0, 41), st.integers(0, 2**32))
@settings(deadline=None)
def test_a_sample_is_distinct_and_untouched(ids, k, seed):
    size = 41
    k = min(k, size - ids.size)
    sample = sample_untouched(ids, size, k=k, stream=NoiseSource(seed=seed).noise)
    assert sample.size == np.unique(sample).size == k
    assert not np.isin(sample, ids).any()
    assert np.all((sample >= 0) & (sample < size))


@pytest.mark.parametrize(("high", "k"), [(6, 2), (7, 5), (9, 3)])
def test_every_set_is_equally_likely(high, k, stream, follows):
    sets = [distinct_integers(high, k=k, stream=stream) for _ in range(20_000)]
    codes = np.array([(1 << chosen).sum() for chosen in sets])
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == comb(high, k)
    assert follows(counts, np.full(counts.size, 1 / counts.size))


def test_a_large_id_space_is_no_burden(stream):
    sample = sample_untouched(np.arange(10**5) * 10**13, 10**18, k=1000, stream=stream)
    assert sample.size == 1000
    assert sample.max() > 9 * 10**17


@pytest.mark.parametrize(
    ("ids", "values", "size", "named"),
    [
        ([0, 1], [1.0], 5, "values"),
        ([1, 0], [1.0, 1.0], 5, "ids"),
        ([1, 1], [1.0, 1.0], 5, "ids"),
        ([-1, 1], [1.0, 1.0], 5, "ids"),
        ([0, 5], [1.0, 1.0], 5, "ids"),
        ([0.5], [1.0], 5, "ids"),
        ([[0]], [1.0], 5, "ids"),
        ([0], [np.nan], 5, "values"),
        ([0], [np.inf], 5, "values"),
        ([], [], 0, "size"),
        ([], [], 2**63, "size"),
        ([], [], 2.5, "size"),
    ],
)
def test_bad_histograms_are_refused_by_name(ids, values, size, named):
    with pytest.raises(ValueError, match=f"^{named} "):
        check_histogram(ids, values, size)


@pytest.mark.parametrize("k", [0, -1, 6, 1.5])
def test_bad_k(k):
    with pytest.raises(ValueError, match=r"^k "):
        check_choice(k, 5)


def test_an_empty_histogram_is_fine():
    ids, values, size = check_histogram([], [], 3)
    assert ids.dtype == np.int64
    assert values.dtype == np.float64
    assert size == 3


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        (thresholded_counts, {"std": 1.0, "threshold": 7.0}),
        (top_k_gaussian, {"k": 1000, "std": 1.0}),
        (top_k_laplace, {"k": 1000, "epsilon": 1.0, "sensitivity": 1.0}),
        (top_k_gumbel, {"k": 1000, "epsilon": 1.0}),
        (exponential_top_k, {"k": 1000, "epsilon": 1.0, "sensitivity": 1.0}),
        (sparse_vector, {"threshold": 20.0, "positives": 100, "threshold_scale": 1.0, "query_scale": 1.0}),
    ],
)
def test_memory_is_that_of_the_touched_rows(mechanism, options, stream):
    """A billion rows, a hundred thousand touched: a few MB, where one number a row would be 8 GB."""
    ids = np.arange(10**5) * 9_999
    counts = np.ones(ids.size)
    mechanism(ids, counts, 10**9, **options, stream=stream)
    tracemalloc.start()
    mechanism(ids, counts, 10**9, **options, stream=stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 2**20
