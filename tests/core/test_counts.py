from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.core.counts import SparseCounts, contains, distinct

rows = st.lists(st.integers(0, 2**62), unique=True, max_size=12).map(
    lambda ids: np.array(sorted(ids), dtype=np.int64)
)
small = st.lists(st.integers(0, 15), unique=True, max_size=12).map(
    lambda ids: np.array(sorted(ids), dtype=np.int64)
)


@given(small | rows, small | rows)
def test_contains_is_set_membership(sorted_rows: np.ndarray, wanted: np.ndarray) -> None:
    assert contains(sorted_rows, wanted).tolist() == [row in set(sorted_rows.tolist()) for row in wanted]


@given(small | rows, small | rows)
def test_within_keeps_what_is_inside_under_its_place(ids: np.ndarray, domain: np.ndarray) -> None:
    counts = SparseCounts(ids, np.arange(1.0, ids.size + 1), 2**62 + 1)
    found = counts.within(domain)
    positions_in = {row: table_index for table_index, row in enumerate(domain.tolist())}
    expected = {
        positions_in[row]: n
        for row, n in zip(ids.tolist(), counts.values, strict=True)
        if row in positions_in
    }
    assert dict(zip(found.ids.tolist(), found.values, strict=True)) == expected
    assert (np.diff(found.ids) > 0).all()
    assert found.size == domain.size


entries = st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5)), max_size=20)


@given(entries, entries)
def test_sums_are_those_of_dense_vectors(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    dense, parts = np.zeros(10), []
    for given_entries in (first, second):
        ids = np.array([entry[0] for entry in given_entries], np.int64)
        values = np.array([entry[1] for entry in given_entries], np.float64)
        np.add.at(dense, ids, values)
        parts.append(SparseCounts.of(ids, 10, values))
    total = parts[0] + parts[1]
    assert (np.diff(total.ids) > 0).all()
    np.testing.assert_array_equal(total.dense(), dense)
    np.testing.assert_array_equal(SparseCounts.sum([total, *parts], 10).dense(), 2 * dense)
    np.testing.assert_array_equal(total.between(3, 7).dense(), dense[3:7])


@given(st.lists(st.integers(0, 9), max_size=30))
def test_occurrences_are_counted(ids: list[int]) -> None:
    counts = SparseCounts.of(np.array(ids, np.int32), 10)
    np.testing.assert_array_equal(counts.dense(), np.bincount(ids, minlength=10))
    assert counts.ids.dtype == np.int64
    assert (counts.values > 0).all()


def test_no_counts_are_zero_and_other_sizes_are_refused() -> None:
    assert SparseCounts.sum([], 4).dense().tolist() == SparseCounts.zeros(4).dense().tolist() == [0.0] * 4
    with pytest.raises(ValueError, match="over 4 and over 5 ids"):
        SparseCounts.zeros(4) + SparseCounts.zeros(5)


@given(st.lists(st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)))
def test_distinct_ids_are_sorted_and_each_once(ids: list[int]) -> None:
    found = distinct(np.array(ids, np.int64))
    assert found.dtype == np.int64
    assert found.tolist() == sorted(set(ids))


def test_distinct_ids_of_any_shape_and_width() -> None:
    assert distinct(np.array([[3, 1], [1, 2]], np.int32)).tolist() == [1, 2, 3]
