from __future__ import annotations

import numpy as np

from sparsedp.core.tables import TableShape
from sparsedp.distributed import RowShards
from sparsedp.distributed.ownership import Ownership, Routes
from sparsedp.rows import RowSpace

SPACE = RowSpace(
    selectable=(TableShape("a", 11, 2), TableShape("b", 30, 3)), always_on=(TableShape("c", 4, 1),)
)
SHARDS = {
    "a": RowShards(11, 3, "hash"),
    "b": RowShards(30, 3, "range"),
    "c": RowShards(4, 3, "range"),
}


def test_owners_number_their_selectable_rows_without_gaps() -> None:
    ids = np.arange(SPACE.selectable_size)
    found = []
    for rank in range(3):
        ownership = Ownership(SPACE, SHARDS, rank, 3)
        own = ids[ownership.owners(ids) == rank]
        assert (np.sort(ownership.numbers(own)) == np.arange(ownership.selectable_size)).all()
        assert (ownership.owned(ids) == np.arange(ownership.selectable_size)).all()
        found.append(own)
    assert (np.sort(np.concatenate(found)) == ids).all()


def test_numbers_are_positions_within_the_own_part_of_each_table() -> None:
    ownership = Ownership(SPACE, SHARDS, 1, 3)
    row_ids = np.array([3, 11 + 10, 11 + 19])
    own = row_ids[ownership.owners(row_ids) == 1]
    rows = ownership.local_rows(np.sort(ownership.numbers(own)))
    assert rows[1].tolist() == [0, 9]
    for table, local in zip(("a", "b"), rows, strict=True):
        shard = SHARDS[table]
        assert (shard.owners(local + shard.span(1).start) == 1).all()


def test_answers_come_back_in_the_order_of_the_questions() -> None:
    owners = np.array([2, 0, 2, 1, 0])
    routes = Routes(owners, 4)
    asked = routes.split(np.arange(5) * 10)
    assert [part.tolist() for part in asked] == [[10, 40], [30], [0, 20], []]
    assert routes.joined([part + 1 for part in asked]).tolist() == [1, 11, 21, 31, 41]  # type: ignore[operator]
