"""The rows of all tables by the process that owns them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.arrays import I64
from sparsedp.distributed.shards import RowShards
from sparsedp.rows import RowSpace


class Routes:
    """How items are sent to their owners and how answers come back in the items' order."""

    def __init__(self, owners: I64, ranks: int) -> None:
        in_order = bool((owners[1:] >= owners[:-1]).all())
        self._order: I64 | None = None if in_order else np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=ranks)).tolist()
        self._parts = [slice(begin, end) for begin, end in pairwise([0, *ends])]

    def split(self, values: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        """Values (one row per item) as one array per owner."""
        by_owner = values if self._order is None else values[self._order]
        return [by_owner[part] for part in self._parts]

    def joined(self, answers: list[NDArray[np.generic]]) -> NDArray[np.generic]:
        """The owners' answers, back in the order of the items."""
        sorted_answers = np.concatenate(answers)
        if self._order is None:
            return sorted_answers
        result = np.empty_like(sorted_answers)
        result[self._order] = sorted_answers
        return result


class Ownership:
    """Every row of every table has one owner, which alone draws its survival and its noise.

    An owner numbers the selectable rows that it owns from 0: table after table, in the order of their positions.
    """

    def __init__(self, space: RowSpace, shards: Mapping[str, RowShards], rank: int, ranks: int) -> None:
        self.space = space
        self.rank, self.ranks = rank, ranks
        self.shards = [shards[table.name] for table in space.tables]
        self.spans = [shard.span(rank) for shard in self.shards]
        """Per table the positions that this process owns."""
        owned = [len(span) for span in self.spans[: len(space.selectable)]]
        self._offsets = list(accumulate(owned, initial=0))

    @property
    def selectable_size(self) -> int:
        """How many selectable rows this process owns."""
        return self._offsets[-1]

    def owners(self, row_ids: I64) -> I64:
        """The owner of each of the sorted global row ids."""
        owners = np.empty(row_ids.size, dtype=np.int64)
        for table_index, part in self._tables(row_ids):
            shard = self.shards[table_index]
            rows = row_ids[part] - self.space.row_offsets[table_index]
            owners[part] = shard.owners(shard.positions(rows))
        return owners

    def numbers(self, row_ids: I64) -> I64:
        """This owner's numbers of rows that it owns, given by sorted global row ids of selectable tables."""
        numbers = np.empty(row_ids.size, dtype=np.int64)
        for table_index, part in self._tables(row_ids):
            rows = row_ids[part] - self.space.row_offsets[table_index]
            own = self.shards[table_index].positions(rows) - self.spans[table_index].start
            numbers[part] = own + self._offsets[table_index]
        return numbers

    def local_rows(self, numbers: I64) -> list[I64]:
        """Sorted numbers as positions within this process's part of each selectable table."""
        cuts = np.searchsorted(numbers, self._offsets).tolist()
        return [
            numbers[begin:end] - offset
            for (begin, end), offset in zip(pairwise(cuts), self._offsets, strict=False)
        ]

    def owned(self, row_ids: I64) -> I64:
        """The sorted numbers of those selectable rows (sorted global row ids) that this process owns."""
        own = row_ids[self.owners(row_ids) == self.rank]
        return np.sort(self.numbers(own))

    def counts(self, row_ids: I64) -> I64:
        """How many of the sorted global ids of selectable rows each process owns, by table: (ranks, tables)."""
        counts = np.zeros((self.ranks, len(self.space.selectable)), dtype=np.int64)
        for table_index, part in self._tables(row_ids):
            shard = self.shards[table_index]
            owners = shard.owners(shard.positions(row_ids[part] - self.space.row_offsets[table_index]))
            counts[:, table_index] = np.bincount(owners, minlength=self.ranks)
        return counts

    def _tables(self, row_ids: I64) -> list[tuple[int, slice]]:
        """The tables that sorted global row ids fall into, and which of them do."""
        cuts = np.searchsorted(row_ids, self.space.offsets).tolist()
        return [(n, slice(begin, end)) for n, (begin, end) in enumerate(pairwise(cuts)) if begin < end]
