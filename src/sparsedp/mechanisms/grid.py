"""Values as whole multiples of a public grid, for the mechanisms that add exact integer noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparsedp.accounting.validation import check_positive
from sparsedp.mechanisms.histogram import check_array

_COARSEST, _FINEST = 64, 2**24
_LARGEST = 2.0**52


def grid_integers(values: ArrayLike, *, grid: float, scale: float) -> NDArray[np.int64]:
    """``values / grid`` rounded to integers; the grid is between 1/64 and 2^-24 of the noise's ``scale``."""
    grid = check_positive("grid", grid)
    if not scale / _FINEST <= grid <= scale / _COARSEST:
        raise ValueError(f"grid must lie between 2^-24 and 1/64 of the noise scale {scale}, got {grid}")
    multiples = np.rint(check_array("values", values) / grid)
    if multiples.size and np.abs(multiples).max() > _LARGEST:
        raise ValueError(f"grid must leave |values| / grid below 2^52, got {grid}")
    return multiples.astype(np.int64)
