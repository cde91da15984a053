"""How many steps an epoch of Poisson batches is: one formula for the loader, the planner and the accountant."""

from __future__ import annotations

import math

_ROUNDING = 1e-6  # of the quotients below, in floating point


def steps_per_epoch(sampling_rate: float) -> int:
    """How many Poisson batches the loader hands out in one pass: 1 / rate, rounded up."""
    return max(1, math.ceil(1.0 / sampling_rate - _ROUNDING))


def steps_in(epochs: float, steps_per_epoch: int) -> int:
    """How many steps ``epochs`` passes over a loader take, rounded up.

    It counts the loader's batches, so a training loop never takes more steps; ``epochs / rate`` could be too few
    where 1 / rate is not an integer.
    """
    return max(1, math.ceil(epochs * steps_per_epoch - _ROUNDING))
