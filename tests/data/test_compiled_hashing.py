"""The compiled loops give what the rule in numpy gives, which its own tests compare with the documented one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.data import compiled_hashing, criteo, hashing


@settings(deadline=None)
@given(st.lists(st.none() | st.text(max_size=40), max_size=30), st.integers(0, 30))
def test_texts_hash_by_the_rule(values: list[str | None], start: int) -> None:
    series = pl.Series(values, dtype=pl.String)
    for each in (series, series.slice(min(start, len(values)))):
        np.testing.assert_array_equal(compiled_hashing.hash_strings(each), hashing.hash_strings(each))


def test_long_texts_missing_ones_and_several_chunks() -> None:
    values = [None, "", *("xyz" * length for length in (1, 3, 4, 5, 6, 40, 5000)), None]
    chunks = [pl.Series(values), pl.Series(values[:3]), pl.Series(values[::-1])]
    series = pl.concat(chunks, rechunk=False)
    assert len(series.get_chunks()) == 3
    hidden = pl.select(pl.when(pl.Series([True, False] * 5)).then(pl.Series(values))).to_series()
    for each in (series, series.rechunk(), hidden):
        np.testing.assert_array_equal(compiled_hashing.hash_strings(each), hashing.hash_strings(each))


@settings(deadline=None)
@given(st.lists(st.none() | st.text("0123456789abcdefABCDEFgG/:@`é", max_size=14), max_size=40))
def test_hex_digits_hash_by_the_rule(values: list[str | None]) -> None:
    series = pl.Series([*values, "68fd1e64", "68FD1E64"], dtype=pl.String)
    hashes, right = compiled_hashing.hash_hex(series)
    expected, expected_right = criteo.hash_hex(series)
    np.testing.assert_array_equal(right, expected_right)
    np.testing.assert_array_equal(hashes[right], expected[right])
    assert hashes[-1] == hashes[-2]


@pytest.mark.parametrize("rows", [2, 1472, hashing.MAX_ROWS])
def test_buckets_are_those_of_the_rule(rows: int) -> None:
    hashes = np.random.default_rng(5).integers(0, 2**64, 1000, np.uint64)
    hashes[:3] = 0, 1, 2**64 - 1
    ids = np.full((1000, 3), -1, np.int32)
    compiled_hashing.write_buckets(hashes, rows, ids[:, 1])
    np.testing.assert_array_equal(ids[:, 1], hashing.buckets(hashes, rows))
    assert (ids[:, [0, 2]] == -1).all()
    with pytest.raises(ValueError, match="rows must lie in"):
        compiled_hashing.write_buckets(hashes, 1, ids[:, 0])
