from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.core.counts import SparseCounts
from sparsedp.data.counts import ValueCounts
from sparsedp.data.schema import SourcePosition

blocks = st.lists(st.lists(st.integers(0, 50), max_size=20), max_size=8)


def totals(counts):
    found, due = {}, 0
    for low, part in counts.ranges():
        assert low == due
        assert all(0 <= key < part.size for key in part.ids)
        found.update(zip((low + part.ids).tolist(), part.values.tolist(), strict=True))
        due = low + part.size
    assert due == counts.size
    return found


@settings(deadline=None)
@given(blocks, st.integers(1, 40))
def test_counts_are_right_however_often_they_spill(tmp_path_factory, blocks, entries):
    counts = ValueCounts(tmp_path_factory.mktemp("counts"), 51, entries)
    for number, block in enumerate(blocks):
        counts.add(SparseCounts.of(np.array(block, np.int64), 51), SourcePosition(0, number + 1))
    assert totals(counts) == dict(Counter(value for block in blocks for value in block))


def test_an_interrupted_count_goes_on_behind_the_last_run(tmp_path):
    blocks = [np.array([n, n, 7], np.int64) for n in range(10)]
    first = ValueCounts(tmp_path, 51, 5)
    for number, block in enumerate(blocks[:7]):
        first.add(SparseCounts.of(block, 51), SourcePosition(0, number + 1))
    # The process ends here: what had not been written to a run is lost and counted again.
    second = ValueCounts(tmp_path, 51, 5)
    assert 0 < second.counted.byte < 7
    for number in range(second.counted.byte, 10):
        second.add(SparseCounts.of(blocks[number], 51), SourcePosition(0, number + 1))
    assert totals(second) == dict(Counter(np.concatenate(blocks).tolist()))


def test_ranges_hold_about_as_many_entries_as_fit(tmp_path):
    counts = ValueCounts(tmp_path, 10**6, 20_000)
    ids = np.arange(0, 10**6, 7)
    for part in np.array_split(ids, 9):
        counts.add(SparseCounts.of(part, 10**6), SourcePosition())
    sizes = [len(part.ids) for _, part in counts.ranges()]
    assert sum(sizes) == len(ids)
    assert max(sizes) < 25_000
