"""Batch schedules with numbers of a test's own, which the library refuses to make."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.convex.sgd import batch_schedule
from sparsedp.convex.sgd.batch_schedule import BatchSchedule


def handmade_schedule(
    size: int,
    noise: float,
    levels: ArrayLike,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    adjacency: str = "add-or-remove-one",
) -> BatchSchedule:
    """A schedule that states this budget, whatever its steps cost."""
    return batch_schedule._priced(size, noise, np.asarray(levels), epsilon, delta, adjacency)


def with_noise(schedule: BatchSchedule, noise: float) -> BatchSchedule:
    """The same schedule at another noise, for controls."""
    return batch_schedule._priced(
        schedule.size, noise, schedule.levels, schedule.epsilon, schedule.delta, schedule.adjacency
    )
