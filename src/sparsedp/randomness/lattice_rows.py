"""Rounded Gaussians where every row has a standard deviation of its own: noise that rows owe from earlier steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparsedp.compiled import compiled
from sparsedp.randomness.lattice import CHUNK, rounded_gaussian
from sparsedp.randomness.stream import Stream

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

LARGEST_ROW_STD = 2.0**40
_FINE_BITS = 44
_SPLIT = 2.0**27 + 1.0


def rounded_gaussian_rows(std_cells: F64, dim: int, stream: Stream) -> I64:
    """Integers, ``dim`` a row, that of row n with the law of a Gaussian of ``std_cells[n]``, rounded.

    Guarantee: that of ``RoundedGaussian`` (probabilities to a relative 2^-40, out to 11.5 standard deviations),
    for any standard deviations from 0 to 2^40 cells, without tables for each.
    Proof: a rounded Gaussian of 2^44 cells, spread uniformly over its cell with 64 more bits, has the density
    of a Gaussian up to 2^-40 of it, within each cell and over it. A row's cell is at least 16 of these cells
    wide, and which of its cells a number falls into is decided with 106 bits of their product.
    """
    std_cells = np.ascontiguousarray(std_cells, dtype=np.float64)
    if std_cells.ndim != 1 or not np.all((std_cells >= 0.0) & (std_cells <= LARGEST_ROW_STD)):
        raise ValueError("std_cells: must be a vector of numbers in [0, 2^40]")
    sampler, scale = rounded_gaussian(2.0**_FINE_BITS), std_cells * 2.0**-_FINE_BITS
    cells = np.empty((std_cells.size, dim), dtype=np.int64)
    rows = max(1, CHUNK // max(dim, 1))
    for begin in range(0, std_cells.size, rows):
        part = cells[begin : begin + rows]
        sampler.fill(part.reshape(-1), stream)
        _rescale(
            part, stream.uint64(part.size).view(np.int64).reshape(part.shape), scale[begin : begin + rows]
        )
    return cells


@compiled
def _rescale(cells: I64, spread: I64, scale: F64) -> None:
    """``floor(scale (cell + u) + 1/2)`` with u in [-1/2, 1/2) from a word of spread, the product to 106 bits."""
    for n in range(cells.shape[0]):
        factor = scale[n]
        head = _SPLIT * factor - (_SPLIT * factor - factor)
        tail = factor - head
        for c in range(cells.shape[1]):
            value = np.float64(cells[n, c])
            product = factor * value
            upper = _SPLIT * value - (_SPLIT * value - value)
            lower = value - upper
            lost = ((head * upper - product) + head * lower + tail * upper) + tail * lower
            nearest = np.rint(product)
            u = (np.float64(spread[n, c]) + 0.5) * 2.0**-64
            rest = (product - nearest) + (lost + factor * u)
            cells[n, c] = np.int64(nearest) + np.int64(np.floor(rest + 0.5))
