"""Which rows a part of a data set has: a range, a list, or all but a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparsedp.core.arrays import I64


class RowSet(Protocol):
    """An ordered set of rows: its size, and the rows at given positions of it."""

    def __len__(self) -> int: ...

    def at(self, positions: I64) -> I64:
        """Return the rows at the positions."""


@dataclass(frozen=True)
class RowRange:
    """The rows from `start` to before `stop`."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def at(self, positions: I64) -> I64:
        """Return the rows at the positions."""
        return positions + self.start


@dataclass(frozen=True, eq=False)
class RowList:
    """The rows of an array, in its order."""

    rows: I64

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, positions: I64) -> I64:
        """Return the rows at the positions."""
        return self.rows[positions]


@dataclass(frozen=True, eq=False)
class AllBut:
    """The rows of `range(size)` that are not in the sorted array `left_out`; memory is that of the array."""

    size: int
    left_out: I64

    def __len__(self) -> int:
        return self.size - len(self.left_out)

    def at(self, positions: I64) -> I64:
        """Return the rows at the positions: a position moves up by one for every row left out before it."""
        kept_before = self.left_out - np.arange(len(self.left_out))
        return positions + np.searchsorted(kept_before, positions, side="right")


def within(outer: RowSet, inner: RowSet) -> RowSet:
    """Return the rows of `outer` at the positions that `inner` names: a part of a part."""
    if isinstance(outer, RowRange) and isinstance(inner, RowRange):
        return RowRange(outer.start + inner.start, outer.start + inner.stop)
    return _Within(outer, inner)


@dataclass(frozen=True)
class _Within:
    outer: RowSet
    inner: RowSet

    def __len__(self) -> int:
        return len(self.inner)

    def at(self, positions: I64) -> I64:
        """Return the rows at the positions."""
        return self.outer.at(self.inner.at(positions))
