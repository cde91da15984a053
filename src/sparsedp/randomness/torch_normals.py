"""Normals in bulk, as many threads drawing them as torch has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsedp.compiled import compiled
from sparsedp.randomness.box_muller import fill_normals
from sparsedp.randomness.stream import Stream


def normals(count: int, std: float, stream: Stream) -> NDArray[np.float32]:
    """New normals of standard deviation ``std``."""
    values = np.empty(count, dtype=np.float32)
    fill_normals(values, stream.keystream, torch.get_num_threads(), std)
    return values


def round_to_grid_(values: NDArray[Any], grid: float) -> NDArray[Any]:
    """Round a vector to the nearest multiples of ``grid``, a power of two, in place (exact in floating point)."""
    if not (grid > 0.0 and math.frexp(grid)[0] == 0.5):
        raise ValueError(f"grid: must be a power of two, got {grid}")
    # A float of the array's own kind: float32 is then rounded in float32.
    _round(values, values.dtype.type(1.0 / grid), values.dtype.type(grid))
    return values


@compiled
def _round(values: NDArray[Any], per_unit: Any, grid: Any) -> None:
    for n in range(values.size):
        values[n] = np.rint(values[n] * per_unit) * grid
