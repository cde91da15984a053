"""A sparse non-negative quantity over rows: contribution counts, scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.compiled import compiled


class SparseCounts(NamedTuple):
    """``counts[n]`` belongs to row ``ids[n]``; every other row has zero. ``ids`` are sorted and distinct."""

    ids: NDArray[np.int64]
    counts: NDArray[np.float64]

    def within(self, rows: NDArray[np.int64]) -> SparseCounts:
        """Restricted to the sorted ``rows``, and renumbered by their position in them."""
        position = positions_in(rows, self.ids)
        inside = position >= 0
        return SparseCounts(position[inside], self.counts[inside])


def contains(sorted_rows: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of ``rows`` are among ``sorted_rows``."""
    return positions_in(sorted_rows, rows) >= 0


def positions_in(sorted_rows: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of ``rows`` stands among ``sorted_rows``; -1 where it does not."""
    found = np.empty(rows.size, np.int64)
    _find(sorted_rows, rows, found)
    return found


@compiled
def _find(sorted_rows: NDArray[np.int64], rows: NDArray[np.int64], found: NDArray[np.int64]) -> None:
    for n in range(rows.size):
        position = np.searchsorted(sorted_rows, rows[n])
        found[n] = position if position < sorted_rows.size and sorted_rows[position] == rows[n] else -1
