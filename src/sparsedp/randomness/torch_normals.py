"""Normals in bulk, as many threads drawing them as torch has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsedp.compiled import compiled
from sparsedp.randomness.box_muller import fill_normals
from sparsedp.randomness.stream import Stream

_CHUNK = 1 << 16


def normals(count: int, std: float, stream: Stream) -> NDArray[np.float32]:
    """New normals of standard deviation ``std``: those that ``normal_`` would draw, times ``std``."""
    values = np.empty(count, dtype=np.float32)
    fill_normals(values, stream.keystream, torch.get_num_threads(), std)
    return values


def normal_(out: Tensor, stream: Stream) -> Tensor:
    """Fill a contiguous float32 or float64 CPU tensor with standard normals and return it.

    Fill one large tensor rather than many rows: float32 then comes at the rate of ``torch.randn``. What is
    drawn depends on the stream and on the number of elements, not on torch's number of threads.
    """
    if out.device.type != "cpu" or not out.is_contiguous():
        raise ValueError("out: must be a contiguous tensor in main memory")
    values = out.detach().view(-1).numpy()
    if out.dtype == torch.float32:
        fill_normals(values, stream.keystream, torch.get_num_threads())
    elif out.dtype == torch.float64:
        for begin in range(0, values.size, _CHUNK):
            part = values[begin : begin + _CHUNK]
            part[...] = stream.normal(part.size)
    else:
        raise ValueError(f"out: must be float32 or float64, got {out.dtype}")
    return out


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
