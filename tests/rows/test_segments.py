"""What `SortedLookups` does not reach; its own tests compare all of them with plain dictionaries."""

from __future__ import annotations

import numpy as np
import pytest

from sparsedp.rows.segments import add_row_sums, clipped_counts, pair_squares

NONE = np.empty(0, np.int64)
ONE = np.empty(0, np.float32)
IN_ORDER = np.arange(2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_has_no_weight_does_not_enter_a_sum(dtype: type) -> None:
    grads = np.array([np.nan, np.inf, 1.0, 2.0], dtype=dtype)
    weights = np.array([0.0, 0.5], dtype=np.float32)
    out = np.zeros((1, 2), dtype=dtype)
    one, starts = np.array([0]), np.array([0, 2])
    add_row_sums(out, NONE, 0, one, one, starts, IN_ORDER, IN_ORDER, weights, (0, grads, 2, 2, NONE, ONE))
    assert out.tolist() == [[0.5, 1.0]]


def test_squares_beyond_single_precision_are_finite() -> None:
    """An example with a gradient of 1e30 is clipped, not dropped."""
    grads = np.full((2, 3), 1e30, dtype=np.float32)
    out = np.empty(2)
    pair_squares(out, np.arange(3), IN_ORDER, (0, grads.ravel(), 3, 3, NONE, ONE))
    np.testing.assert_allclose(out, 3e60, rtol=1e-6)


def test_squares_that_are_not_finite_show() -> None:
    grads = np.array([[1.0, np.nan], [np.inf, 0.0]], dtype=np.float32)
    out = np.empty(2)
    pair_squares(out, np.arange(3), IN_ORDER, (0, grads.ravel(), 2, 2, NONE, ONE))
    assert np.isnan(out[0])
    assert np.isposinf(out[1])


def test_long_sums_keep_single_precision() -> None:
    """A row that 100,000 examples read: added up in float32 the sum would be off by 1e-3 and more."""
    lookups, tenth = 100_000, np.float32(0.1)
    grads = np.full(lookups, tenth)
    out = np.zeros((1, 1), dtype=np.float32)
    one, starts, each = np.array([0]), np.array([0, lookups]), np.arange(lookups)
    weights = np.ones(lookups, np.float32)
    add_row_sums(out, NONE, 0, one, one, starts, each, each, weights, (0, grads, 1, 1, NONE, ONE))
    assert out[0, 0] == np.float32(lookups * float(tenth))


def test_sums_are_added_at_the_lines_of_their_rows() -> None:
    """Rows 3 and 8 of a table that begins at 100; rows 1, 3, 5 and 8 of it are selected."""
    grads, weights = np.array([1, 2, 3, 4], dtype=np.float32), np.ones(2, np.float32)
    rows, starts, selected = np.array([103, 108]), np.array([0, 1, 2]), np.array([1, 3, 5, 8])
    rest = (rows, starts, IN_ORDER, IN_ORDER, weights, (0, grads, 2, 2, NONE, ONE))
    out = np.full((4, 2), 10, dtype=np.float32)
    add_row_sums(out, selected, 100, IN_ORDER, *rest)
    assert out.tolist() == [[10, 10], [11, 12], [10, 10], [13, 14]]
    whole = np.zeros((9, 2), dtype=np.float32)
    add_row_sums(whole, NONE, 100, IN_ORDER, *rest)
    assert whole[[3, 8]].tolist() == [[1, 2], [3, 4]]
    assert whole.sum() == 10


def test_an_example_within_the_norm_counts_whole() -> None:
    """Three rows of norm sqrt(3): not even the last bit of a count is clipped."""
    whole = np.empty(3)
    everything, owner = np.empty(0, np.bool_), np.zeros(3, np.int64)
    clipped_counts(whole, everything, np.arange(4), owner, np.ones(1, np.bool_), np.sqrt(3.0))
    assert whole.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("size", [2.0**30, 2.0**60, 2.0**100])
def test_readings_of_one_example_that_cancel_do_not_round_the_others(size: float) -> None:
    """Example 1 reads the row twice, with gradients that cancel; example 0 and 2 read it once."""
    grads = np.array([0.7, size, -size, 0.3], dtype=np.float32)
    examples, weights = np.array([0, 1, 1, 2]), np.ones(3, np.float32)
    out = np.zeros((1, 1))
    one, starts = np.array([0]), np.array([0, 4])
    add_row_sums(out, NONE, 0, one, one, starts, np.arange(4), examples, weights, (0, grads, 1, 1, NONE, ONE))
    assert out[0, 0] == pytest.approx(1.0, rel=1e-6)
