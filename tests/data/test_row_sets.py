import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.data.row_sets import AllBut, RowList, RowRange, within


def rows(chosen):
    return chosen.at(np.arange(len(chosen))).tolist()


@settings(deadline=None)
@given(st.integers(0, 40), st.data())
def test_all_but_some_are_the_others(size, data):
    left_out = sorted(data.draw(st.sets(st.integers(0, max(0, size - 1)), max_size=size)) if size else [])
    assert rows(AllBut(size, np.array(left_out, np.int64))) == sorted(set(range(size)) - set(left_out))


def test_a_part_of_a_part():
    assert rows(within(RowRange(10, 20), RowRange(2, 5))) == [12, 13, 14]
    assert isinstance(within(RowRange(10, 20), RowRange(2, 5)), RowRange)
    odd = RowList(np.array([1, 3, 5, 7]))
    assert rows(within(odd, RowRange(1, 3))) == [3, 5]
    assert rows(within(AllBut(6, np.array([0, 4])), RowList(np.array([3, 0])))) == [5, 1]
