"""Array types by their size, and sums over arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U16 = NDArray[np.uint16]
U64 = NDArray[np.uint64]
Bools = NDArray[np.bool_]


# In one thread: BLAS keeps the other cores spinning for a while after every long product.
def weighted_sum(weights: F64, values: F64) -> float:
    """The sum of weights x values."""
    return float((weights * values).sum())


def weighted_sums(weights: F64, rows: F64) -> F64:
    """`weighted_sum` with each row of a matrix."""
    return np.asarray(np.einsum("ij,j->i", rows, weights))
