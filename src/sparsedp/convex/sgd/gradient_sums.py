"""Sums of clipped sparse gradients, computed and stored by their nonzero coordinates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sparsedp.convex.clip import clip_rows, zero_broken_rows
from sparsedp.core.counts import SparseCounts

SAFE = 1.0 - 2.0**-10
"""Clipping to a little less than the bound, so that rounding, of norms and of sums, never passes it."""


def clipped_rows(rows: sparse.csr_array, l2_bound: float) -> sparse.csr_array:
    """Every row scaled down to norm `l2_bound` if it is longer; a row with a NaN or an infinity becomes zero.

    Guarantee: each row of the result is a function of its own row alone, of norm at most `l2_bound`.
    """
    clipped: sparse.csr_array = clip_rows(without_broken_rows(rows), l2=SAFE * l2_bound)
    return clipped


def without_broken_rows(rows: sparse.csr_array) -> sparse.csr_array:
    """A float64 copy in which rows with a NaN or an infinity are zero.

    Coordinates stored twice in a row are added: their squares apart would understate the row's norm.
    """
    copied: sparse.csr_array = sparse.csr_array(rows).astype(np.float64, copy=True)
    copied.sum_duplicates()
    finite: sparse.csr_array = zero_broken_rows(copied)[0]
    return finite


def row_sum(rows: sparse.csr_array, chosen: NDArray[np.bool_]) -> SparseCounts:
    """The sum of the chosen rows."""
    entries = np.repeat(chosen, np.diff(rows.indptr))
    return SparseCounts.of(rows.indices[entries], rows.shape[1], rows.data[entries])


def combine(*terms: tuple[float, SparseCounts]) -> SparseCounts:
    """The linear combination `sum of factor * vector`."""
    ids = np.concatenate([vector.ids for _, vector in terms])
    values = np.concatenate([factor * vector.values for factor, vector in terms])
    return SparseCounts.of(ids, terms[0][1].size, values)
