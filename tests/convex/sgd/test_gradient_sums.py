from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from sparsedp.convex.sgd.gradient_sums import clipped_rows, combine, row_sum, without_broken_rows
from sparsedp.core.counts import SparseCounts

entries = st.one_of(
    st.floats(-1e3, 1e3), st.sampled_from([1e300, -1e300, 1e-300, math.inf, -math.inf, math.nan])
)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), rows=st.integers(1, 6), columns=st.integers(1, 5), bound=st.floats(1e-6, 1e6))
def test_every_row_is_short_and_its_own(data: st.DataObject, rows: int, columns: int, bound: float) -> None:
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows))
    total = sum(lengths)
    indices = data.draw(st.lists(st.integers(0, columns - 1), min_size=total, max_size=total))
    values = data.draw(st.lists(entries, min_size=total, max_size=total))
    matrix = sparse.csr_array(
        (np.array(values, dtype=float), np.array(indices, dtype=int), np.cumsum([0, *lengths])),
        shape=(rows, columns),
    )
    clipped = clipped_rows(matrix, bound)
    dense = clipped.toarray()
    assert np.isfinite(dense).all()
    assert np.linalg.norm(dense / bound, axis=1).max() <= 1.0
    for row in range(rows):
        alone = clipped_rows(matrix[[row]], bound).toarray()
        assert np.array_equal(alone[0], dense[row])


def test_short_rows_are_left_alone_and_long_ones_keep_their_direction() -> None:
    matrix = sparse.csr_array(np.array([[0.3, 0.0, 0.4], [30.0, 0.0, 40.0], [0.0, 0.0, 0.0]]))
    dense = clipped_rows(matrix, 1.0).toarray()
    assert np.array_equal(dense[0], [0.3, 0.0, 0.4])
    assert np.allclose(dense[1], [0.6, 0.0, 0.8], rtol=2e-3)
    assert not dense[2].any()


def test_entries_stored_twice_count_as_their_sum() -> None:
    """Two halves of one coordinate: a norm over stored entries would understate it by sqrt(2)."""
    matrix = sparse.csr_array((np.array([1.0, 1.0]), np.array([2, 2]), np.array([0, 2])), shape=(1, 4))
    assert abs(clipped_rows(matrix, 1.0).toarray()[0, 2]) <= 1.0


def test_broken_rows_become_zero_alone() -> None:
    matrix = sparse.csr_array(np.array([[1.0, math.nan], [2.0, 3.0], [math.inf, 0.0]]))
    assert np.array_equal(without_broken_rows(matrix).toarray(), [[0.0, 0.0], [2.0, 3.0], [0.0, 0.0]])
    assert math.isnan(matrix.toarray()[0, 1])


def test_sums() -> None:
    rng = np.random.default_rng(0)
    matrix = sparse.random_array((9, 20), density=0.3, rng=rng, format="csr")
    chosen = rng.uniform(size=9) < 0.5
    assert np.allclose(row_sum(matrix, chosen).dense(), matrix.toarray()[chosen].sum(axis=0))
    nothing = row_sum(matrix, np.zeros(9, dtype=bool))
    assert nothing.ids.size == 0
    added = SparseCounts.of(np.array([3, 1, 3]), 5, np.array([1.0, 2.0, 4.0]))
    assert np.array_equal(added.dense(), [0.0, 2.0, 0.0, 5.0, 0.0])
    other = SparseCounts(np.array([0, 3]), np.array([1.0, 1.0]), 5)
    assert np.array_equal(combine((2.0, added), (-1.0, other)).dense(), [-1.0, 4.0, 0.0, 9.0, 0.0])
