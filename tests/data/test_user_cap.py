"""The first rows of each user remain, whatever the blocks and whoever else is there."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.data.user_cap import UserCap, user_ids

BLOCKS = st.lists(st.lists(st.integers(-3, 3), max_size=8), max_size=6)


def kept(blocks: list[list[int]], rows: int) -> list[list[bool]]:
    cap = UserCap(rows)
    return [cap.keep(np.array(block, np.int64)).tolist() for block in blocks]


def test_a_user_has_one_text_in_all_files() -> None:
    """As an integer, as a float of a column with gaps, as either of them written to text."""
    for same in (["7"], ["7.0"], [" 7 "], [7], [7.0, None], [7.0, math.nan], [7.0, 0.5]):
        assert user_ids(pl.Series(same))[0] == "7"
    large = pl.Series([12345678901.0, 1e25, -3.0, 2.5])
    assert user_ids(large).to_list() == ["12345678901", str(large.cast(pl.String)[1]), "-3", "2.5"]
    assert user_ids(pl.Series(["v1.0", "1.50", "a b"])).to_list() == ["v1.0", "1.50", "a b"]


def test_nobody_is_no_user() -> None:
    for missing in (["", " ", None], [None, math.nan], [None, None]):
        assert user_ids(pl.Series(missing)).null_count() == len(missing)


@given(BLOCKS, st.integers(1, 4))
def test_the_first_rows_of_each_user_remain(blocks: list[list[int]], rows: int) -> None:
    seen: dict[int, int] = {}
    for block, found in zip(blocks, kept(blocks, rows), strict=True):
        for user, keep in zip(block, found, strict=True):
            seen[user] = seen.get(user, 0) + 1
            assert keep == (seen[user] <= rows)


@given(BLOCKS, st.integers(1, 4), st.integers(-3, 3))
def test_a_user_changes_nothing_for_the_others(blocks: list[list[int]], rows: int, gone: int) -> None:
    others = [[user for user in block if user != gone] for block in blocks]
    full = kept(blocks, rows)
    left = [
        [keep for user, keep in zip(block, found, strict=True) if user != gone]
        for block, found in zip(blocks, full, strict=True)
    ]
    assert kept(others, rows) == left


def test_users_are_counted_and_a_cap_of_nothing_is_refused() -> None:
    cap = UserCap(2)
    cap.keep(np.array([7, -1, 7]))
    cap.keep(np.array([5, 7]))
    assert cap.users == 3
    with pytest.raises(ValueError, match="rows_per_user must be at least 1"):
        UserCap(0)


def test_users_that_cannot_be_read_are_nobody() -> None:
    """In another encoding Möller and Müller are the same text: one of them gone would exchange what the other is."""
    names = [name.encode("latin-1").decode(errors="replace") for name in ("Möller", "Müller", "Meier")]
    assert names[0] == names[1]
    assert user_ids(pl.Series(names)).to_list() == [None, None, "Meier"]
