from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.rows.order import order_by_row

Pairs = list[tuple[int, int]]
pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=30).map(
    lambda lookups: sorted(lookups, key=lambda lookup: lookup[1])
)


@pytest.mark.parametrize("stretch", [1, 2**58], ids=["packed in a word", "too wide for a word"])
@given(pairs)
def test_rows_and_pairs_lie_together(stretch: int, lookups: Pairs) -> None:
    numbers = np.array([row * stretch for row, _ in lookups], dtype=np.int64)
    examples = np.array([example for _, example in lookups], dtype=np.int64)
    order = order_by_row(numbers, examples, 7 * stretch, [0])
    assert sorted(order.position.tolist()) == list(range(len(lookups)))
    found: dict[tuple[int, int], list[int]] = {}
    for table_index, row in enumerate(order.rows.tolist()):
        inside = order.position[order.row_starts[table_index] : order.row_starts[table_index + 1]]
        assert set(numbers[inside].tolist()) == {row}
        for pair in range(order.row_pairs[table_index], order.row_pairs[table_index + 1]):
            key = (row // stretch, int(order.pair_example[pair]))
            assert key not in found
            found[key] = order.position[order.pair_starts[pair] : order.pair_starts[pair + 1]].tolist()
    expected: dict[tuple[int, int], list[int]] = {}
    for table_index, lookup in enumerate(lookups):
        expected.setdefault(lookup, []).append(table_index)
    assert found == expected
    assert order.row_starts[-1] == order.pair_starts[-1] == len(lookups)


@given(st.lists(pairs, min_size=1, max_size=4))
def test_tables_one_after_the_other_are_sorted_as_one(tables: list[Pairs]) -> None:
    """A table's numbers lie above those of the table before it."""
    lookups = [
        (7 * table_index + row, example) for table_index, table in enumerate(tables) for row, example in table
    ]
    starts = list(accumulate((len(table) for table in tables), initial=0))[:-1]
    numbers = np.array([row for row, _ in lookups], dtype=np.int64)
    examples = np.array([example for _, example in lookups], dtype=np.int64)
    found = order_by_row(numbers, examples, 7 * len(tables), starts)
    assert found.position.tolist() == np.argsort(numbers, kind="stable").tolist()
    assert found.rows.tolist() == sorted(set(numbers.tolist()))
