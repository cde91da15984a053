"""Sparse vectors over ids: counts, scores, sums of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.arrays import F64, I64, Bools
from sparsedp.core.compiled import compiled


@dataclass(frozen=True, eq=False)
class SparseCounts:
    """A vector over ``range(size)``: ``values[n]`` at ``ids[n]`` (sorted, distinct), zero at every other id."""

    ids: I64
    values: F64
    size: int

    @classmethod
    def zeros(cls, size: int) -> SparseCounts:
        """Zero at every id."""
        return cls(np.empty(0, np.int64), np.empty(0), size)

    @classmethod
    def of(cls, ids: NDArray[np.integer], size: int, values: F64 | None = None) -> SparseCounts:
        """How often each id occurs or, with ``values``, the sum of its values."""
        ids = ids.astype(np.int64, copy=False)
        if values is None:
            distinct, occurrences = np.unique(ids, return_counts=True)
            return cls(distinct, occurrences.astype(np.float64), size)
        distinct, index = np.unique(ids, return_inverse=True)
        return cls(distinct, np.bincount(index, values, distinct.size).astype(np.float64, copy=False), size)

    @classmethod
    def sum(cls, parts: Sequence[SparseCounts], size: int) -> SparseCounts:
        """All of ``parts`` added, which are over ``range(size)`` too."""
        if other := {part.size for part in parts} - {size}:
            raise ValueError(f"counts over {size} and over {other.pop()} ids cannot be added")
        zeros = cls.zeros(size)
        ids = np.concatenate([zeros.ids, *(part.ids for part in parts)])
        return cls.of(ids, size, np.concatenate([zeros.values, *(part.values for part in parts)]))

    def __add__(self, other: SparseCounts) -> SparseCounts:
        return SparseCounts.sum([self, other], self.size)

    def between(self, low: int, high: int) -> SparseCounts:
        """Of ``range(low, high)`` alone, numbered from 0."""
        part = slice(*np.searchsorted(self.ids, (low, high)).tolist())
        return SparseCounts(self.ids[part] - low, self.values[part], high - low)

    def within(self, rows: I64) -> SparseCounts:
        """Of the sorted ``rows`` alone, numbered by their position among them."""
        position = positions_in(rows, self.ids)
        inside = position >= 0
        return SparseCounts(position[inside], self.values[inside], rows.size)

    def dense(self) -> F64:
        """The value of every id."""
        values = np.zeros(self.size)
        values[self.ids] = self.values
        return values


def distinct(ids: NDArray[np.integer]) -> I64:
    """The sorted ids, each once. ``np.unique`` hashes them first, which takes ten times as long."""
    ordered = np.sort(ids, axis=None).astype(np.int64, copy=False)
    is_first = np.ones(ordered.size, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def contains(sorted_rows: I64, rows: I64) -> Bools:
    """Which of ``rows`` are among ``sorted_rows``."""
    return positions_in(sorted_rows, rows) >= 0


def positions_in(sorted_rows: I64, rows: I64) -> I64:
    """Where each of ``rows`` stands among ``sorted_rows``; -1 where it does not."""
    found = np.empty(rows.size, np.int64)
    _find(sorted_rows, rows, found)
    return found


@compiled
def _find(sorted_rows: I64, rows: I64, found: I64) -> None:
    for n in range(rows.size):
        position = np.searchsorted(sorted_rows, rows[n])
        found[n] = position if position < sorted_rows.size and sorted_rows[position] == rows[n] else -1
