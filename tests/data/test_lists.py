import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.data.lists import flatten


@settings(deadline=None)
@given(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=4), max_size=10), st.integers(0, 10))
def test_lists_are_slices_of_their_values(lists, start):
    series = pl.Series(lists, dtype=pl.List(pl.Int32)).slice(start)
    values, offsets = flatten(series)
    expected = [each or [] for each in lists[start:]]
    assert len(offsets) == len(expected) + 1
    assert [
        values[a:b].to_list() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ] == expected
    assert len(values) == offsets[-1]
