"""A sparse non-negative quantity over rows: contribution counts, scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.compiled import compiled


class RowCounts(NamedTuple):
    """``counts[n]`` belongs to row ``ids[n]``; every other row has zero. ``ids`` are sorted and distinct."""

    ids: NDArray[np.int64]
    counts: NDArray[np.float64]

    def within(self, rows: NDArray[np.int64]) -> RowCounts:
        """Restricted to the sorted ``rows``, and renumbered by their place in them."""
        place = places(rows, self.ids)
        inside = place >= 0
        return RowCounts(place[inside], self.counts[inside])


def contains(sorted_rows: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of ``rows`` are among ``sorted_rows``."""
    return places(sorted_rows, rows) >= 0


def places(sorted_rows: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of ``rows`` stands among ``sorted_rows``; -1 where it does not."""
    found = np.empty(rows.size, np.int64)
    _find(sorted_rows, rows, found)
    return found


@compiled
def _find(sorted_rows: NDArray[np.int64], rows: NDArray[np.int64], found: NDArray[np.int64]) -> None:
    for n in range(rows.size):
        place = np.searchsorted(sorted_rows, rows[n])
        found[n] = place if place < sorted_rows.size and sorted_rows[place] == rows[n] else -1
