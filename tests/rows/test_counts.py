from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.rows import SparseCounts, contains

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
    counts = SparseCounts(ids, np.arange(1.0, ids.size + 1))
    found = counts.within(domain)
    positions_in = {row: table_index for table_index, row in enumerate(domain.tolist())}
    expected = {
        positions_in[row]: n
        for row, n in zip(ids.tolist(), counts.counts, strict=True)
        if row in positions_in
    }
    assert dict(zip(found.ids.tolist(), found.counts, strict=True)) == expected
    assert (np.diff(found.ids) > 0).all()
