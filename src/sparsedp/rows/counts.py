"""A sparse non-negative quantity over rows: contribution counts, scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RowCounts:
    """``counts[n]`` belongs to row ``ids[n]``; every other row has zero. ``ids`` are sorted and distinct."""

    ids: NDArray[np.int64]
    counts: NDArray[np.float64]

    def within(self, rows: NDArray[np.int64]) -> RowCounts:
        """Restricted to the sorted ``rows``, and renumbered by their place in them."""
        if not rows.size:
            return RowCounts(self.ids[:0], self.counts[:0])
        place = np.minimum(np.searchsorted(rows, self.ids), rows.size - 1)
        inside = rows[place] == self.ids
        return RowCounts(place[inside], self.counts[inside])


def contains(sorted_rows: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of ``rows`` are among ``sorted_rows``."""
    if not sorted_rows.size:
        return np.zeros(rows.shape, dtype=np.bool_)
    place = np.minimum(np.searchsorted(sorted_rows, rows), sorted_rows.size - 1)
    found: NDArray[np.bool_] = sorted_rows[place] == rows
    return found
