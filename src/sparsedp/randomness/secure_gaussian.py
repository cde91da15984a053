"""The public grid of noise that is added in floating point."""

from __future__ import annotations

import math

_GRID_BITS = 16
_SMALLEST, _LARGEST = 2.0**-900, 2.0**900


def grid_of(std: float) -> float:
    """The public grid for noise of this size: the power of two in (2^-17, 2^-16] times ``std``."""
    std = float(std)
    if not _SMALLEST <= std <= _LARGEST:
        raise ValueError(f"std: must be positive and lie in [2^-900, 2^900], got {std}")
    _, exponent = math.frexp(std)
    return math.ldexp(1.0, exponent - 1 - _GRID_BITS)
