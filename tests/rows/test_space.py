from __future__ import annotations

import numpy as np
import pytest

from sparsedp.core.tables import TableShape
from sparsedp.rows import RowSpace, partition_tables

A, B, C = TableShape("a", 5, 2), TableShape("b", 2000, 3), TableShape("c", 1000, 1)


def test_selectable_tables_are_numbered_first() -> None:
    space = partition_tables([A, B, C], 1000)
    assert [table.name for table in space.tables] == ["b", "a", "c"]
    assert space.selectable_size == 2000
    assert space.coordinates == 10 + 6000 + 1000
    assert space.number("a", np.array([3])).tolist() == [2003]


def test_a_small_table_may_be_chosen_in() -> None:
    assert [t.name for t in partition_tables([A, B], 1000, frozenset({"a"})).selectable] == ["a", "b"]


def test_numbers_split_by_table() -> None:
    space = RowSpace(selectable=(A, B))
    first, second = space.split(np.array([0, 4, 5, 2004]))
    assert first.tolist() == [0, 4]
    assert second.tolist() == [0, 1999]


def test_coordinates_know_their_rows() -> None:
    space = RowSpace(selectable=(A, B))
    assert space.row_of_coordinate(np.array([0, 9, 10, 12, 13])).tolist() == [0, 4, 5, 5, 6]


def test_empty_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="'x'"):
        TableShape("x", 0, 3)
