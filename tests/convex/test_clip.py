import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from sparsedp.convex.clip import (
    SMALLEST_BOUND,
    as_rows,
    check_bound,
    check_rows,
    clip_rows,
    exact_mean,
    row_norms,
    zero_broken_rows,
    zero_other_rows,
)

values = st.floats(-1e12, 1e12)
matrices = arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 12)), elements=values)


@settings(deadline=None)
@given(matrices, st.floats(1e-6, 1e6), st.floats(0.5, 4.0))
def test_no_row_is_longer_than_either_bound(dense, l2, ratio):
    for rows in (dense, sparse.csr_array(dense)):
        clipped = clip_rows(rows, l2=l2, l1=ratio * l2)
        plain = clipped if isinstance(clipped, np.ndarray) else clipped.toarray()
        for row in plain:
            assert math.sqrt(math.fsum(v * v for v in row)) <= l2
            assert math.fsum(abs(v) for v in row) <= ratio * l2


@settings(deadline=None)
@given(matrices)
def test_short_rows_stay_bit_for_bit(dense):
    bound = 1.01 * max(1.0, float(row_norms(dense, 2).max()))
    assert np.array_equal(clip_rows(sparse.csr_array(dense), l2=bound).toarray(), dense)


def test_huge_and_tiny_rows():
    rows = sparse.csr_array(np.array([[1e300, 1e300], [1e-300, 0.0], [0.0, 0.0]]))
    clipped = clip_rows(rows, l2=1.0).toarray()
    assert np.linalg.norm(clipped[0]) == pytest.approx(1.0)
    assert np.array_equal(clipped[1:], rows.toarray()[1:])


@pytest.mark.parametrize("size", [1e-200, 1e-170, 1e160, 1e200, 1e300])
def test_rows_whose_squares_underflow_or_overflow_are_clipped(size):
    """Norms by plain squares are 0 for entries of 1e-170, which then pass any bound."""
    bound = SMALLEST_BOUND if size < 1 else 1.0
    rows = np.full((2, 100), size)
    rows[1] = 0.0
    with np.errstate(over="ignore"):
        plain = np.sqrt((rows**2).sum(axis=1))
    assert plain[0] in (0.0, math.inf)
    for form in (rows, sparse.csr_array(rows)):
        assert row_norms(form, 2)[0] == pytest.approx(10 * size)
        assert row_norms(form, 1)[0] == pytest.approx(100 * size)
        long = clip_rows(form, l2=size, l1=5 * size)
        dense = long if isinstance(long, np.ndarray) else long.toarray()
        assert np.abs(dense[0] / size).sum() == pytest.approx(5.0)
        short = clip_rows(form, l2=bound)
        dense = short if isinstance(short, np.ndarray) else short.toarray()
        assert np.linalg.norm(dense[0] / bound) <= 1.0
        assert (np.linalg.norm(dense[0] / bound) == pytest.approx(1.0)) == (size > 1)


def test_rows_that_are_not_finite_become_zero_alone():
    dense = np.array([[1.0, math.nan], [2.0, 3.0], [math.inf, 0.0], [0.0, 0.0]])
    expected = [[0.0, 0.0], [2.0, 3.0], [0.0, 0.0], [0.0, 0.0]]
    for rows in (dense, sparse.csr_array(dense)):
        clean, broken = zero_broken_rows(rows)
        assert np.array_equal(clean if isinstance(clean, np.ndarray) else clean.toarray(), expected)
        assert broken.tolist() == [True, False, True, False]
        kept = zero_other_rows(clean, np.array([True, False, True, True]))
        assert not (kept if isinstance(kept, np.ndarray) else kept.toarray()).any()
    assert math.isnan(dense[0, 1])
    finite = np.ones((2, 2))
    assert zero_broken_rows(finite)[0] is finite


@pytest.mark.parametrize("bound", [1e-200, 1e200, 0.0, math.nan])
def test_bounds_at_the_ends_of_float64_are_refused(bound):
    with pytest.raises(ValueError, match="l2_bound must"):
        check_bound("l2_bound", bound)


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, (6, 5), elements=st.floats(-1, 1)), st.permutations(range(6)))
def test_exact_mean_does_not_depend_on_the_order_and_is_close(dense, order):
    rows = clip_rows(sparse.csr_array(dense), l2=1.0)
    mean = exact_mean(rows, l2=1.0)
    assert np.array_equal(mean, exact_mean(rows[list(order)], l2=1.0))
    assert np.allclose(mean, rows.toarray().mean(axis=0), atol=1e-14)


def test_replacing_a_row_moves_the_exact_mean_by_the_sensitivity_and_no_more():
    """Sensitivity, adversarially: opposite rows of full norm among rows made to provoke rounding."""
    generator = np.random.default_rng(0)
    n, d, bound = 4096, 7, 1 / 3
    worst = 0.0
    for _ in range(30):
        dense = generator.standard_normal((n, d)) * 10.0 ** generator.integers(-9, 9, (n, 1))
        other = dense.copy()
        dense[17] = 1e9
        other[17] = -1e9
        means = [exact_mean(clip_rows(sparse.csr_array(x), l2=bound), l2=bound) for x in (dense, other)]
        moved = np.linalg.norm(means[0] - means[1])
        assert moved <= 2 * bound / n * (1 + 1e-12)
        worst = max(worst, float(moved))
    assert worst > 0.999 * 2 * bound / n  # and the claim is not loose


def test_duplicate_entries_are_one_coordinate():
    twice = sparse.csr_array((np.array([3.0, 3.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 4))
    assert row_norms(check_rows("Z", twice), 2)[0] == 6.0
    assert row_norms(as_rows(twice), 2)[0] == 6.0
    assert twice.nnz == 2  # the caller's matrix is left alone


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((0, 3)), "Z must hold at least one example"),
        (np.zeros((3, 0)), "Z must have at least one coordinate"),
        (np.zeros(3), "Z must be a matrix"),
        (np.array([["a", "b"]]), "Z must hold numbers"),
    ],
)
def test_bad_rows(rows, message):
    with pytest.raises(ValueError, match=message):
        check_rows("Z", rows)
