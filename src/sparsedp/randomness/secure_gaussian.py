"""Gaussian noise whose floating-point form does not give the data away."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparsedp.randomness.stream import Stream

_GRID_BITS = 16
_SMALLEST, _LARGEST = 2.0**-900, 2.0**900
_SUMMED = 4


def grid_of(std: float) -> float:
    """The public grid for noise of this size: the power of two in (2^-17, 2^-16] times ``std``."""
    std = float(std)
    if not _SMALLEST <= std <= _LARGEST:
        raise ValueError(f"std: must be positive and lie in [2^-900, 2^900], got {std}")
    _, exponent = math.frexp(std)
    return math.ldexp(1.0, exponent - 1 - _GRID_BITS)


def add_gaussian(values: ArrayLike, std: float, stream: Stream) -> NDArray[np.float64]:
    """``values`` with noise N(0, std^2) on each, in float64, on the public grid ``grid_of(std)``.

    Guarantee: whatever the values, the results are multiples of ``grid_of(std)``. A plain ``x + noise`` is
    not safe, since which floats can come out depends on x. The noise is half the sum of four normals, so no
    single one can be solved for. Rounding is post-processing and the grid is a function of ``std`` alone.
    This is a mitigation, not a proof: where a proof is needed and integers will do, see
    ``discrete_gaussian``.
    """
    x = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(x)):
        raise ValueError("values: must be finite")
    grid = grid_of(std)
    noisy = stream.normal(x.shape)
    for _ in range(_SUMMED - 1):
        noisy += stream.normal(x.shape)
    noisy *= std / math.sqrt(_SUMMED)
    noisy += x
    return round_to_grid(noisy, grid)


def round_to_grid(values: NDArray[np.float64], grid: float) -> NDArray[np.float64]:
    """The nearest multiples of ``grid``, a power of two."""
    if not (grid > 0.0 and math.frexp(grid)[0] == 0.5):
        raise ValueError(f"grid: must be a power of two, got {grid}")
    # Beyond 2^53 grid steps every float is a multiple already, and the quotient might overflow.
    near = np.abs(values) < 2.0**53 * grid
    rounded = np.divide(values, grid, out=values.copy(), where=near)
    np.rint(rounded, out=rounded, where=near)
    return np.multiply(rounded, grid, out=rounded, where=near)
