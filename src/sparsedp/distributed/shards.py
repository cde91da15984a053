"""Which process owns which row of a table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.arrays import I64

By = Literal["range", "hash"]

_STRIPES = 1 << 12
_SPREAD = 2531
"""Odd, near 2^12 over the golden ratio: it sends neighbouring stripes far apart."""


@dataclass(frozen=True)
class RowShards:
    """The rows of a table, divided among processes in ranges of equal size (the last ones may be smaller, or empty).

    By ``range`` a row's position is its id. By ``hash`` it is a fixed permutation of the ids, so that rows that are
    read often, which tend to have neighbouring ids, are spread evenly: ids with the same last 12 bits form a
    stripe, and the stripes follow one another in a scattered order. The permutation depends on the number of rows
    alone: another number of processes only cuts the same order elsewhere.
    """

    rows: int
    ranks: int
    by: By = "range"

    def __post_init__(self) -> None:
        if self.by not in ("range", "hash"):
            raise ValueError(f"by must be 'range' or 'hash', got {self.by!r}")

    @cached_property
    def chunk(self) -> int:
        """The rows of each process but the last ones (``torch.chunk`` divides in the same way)."""
        return -(-self.rows // self.ranks)

    def span(self, rank: int) -> range:
        """The positions that a process owns."""
        return range(min(rank * self.chunk, self.rows), min((rank + 1) * self.chunk, self.rows))

    def owners(self, positions: I64) -> I64:
        """The process of each position."""
        return positions // self.chunk

    def positions(self, ids: I64) -> I64:
        """Where rows stand in the order that is cut into ranges."""
        if self.by == "range":
            return ids
        stripe = ids % self._stripes
        place = stripe * _SPREAD % self._stripes
        # The first stripes have a row more; in the scattered order those before ``place`` are counted.
        return self._starts[place] + ids // self._stripes

    def ids(self, positions: I64) -> I64:
        """The reverse."""
        if self.by == "range":
            return positions
        place = np.searchsorted(self._starts, positions, side="right") - 1
        stripe = place * self._unspread % self._stripes
        ids: I64 = (positions - self._starts[place]) * self._stripes + stripe
        return ids

    @cached_property
    def _stripes(self) -> int:
        return min(_STRIPES, 1 << (self.rows.bit_length() - 1))

    @cached_property
    def _unspread(self) -> int:
        return pow(_SPREAD, -1, self._stripes)

    @cached_property
    def _starts(self) -> I64:
        """The first position of each stripe, in the scattered order."""
        stripes = np.arange(self._stripes) * self._unspread % self._stripes
        lengths = self.rows // self._stripes + (stripes < self.rows % self._stripes)
        return np.concatenate([[0], np.cumsum(lengths)[:-1]])


def narrow(ids: I64, size: int) -> NDArray[np.signedinteger]:
    """Ids below ``size`` in four bytes where that is enough."""
    return ids.astype(np.int32) if size <= 2**31 else ids
