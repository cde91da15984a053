"""Nearest points: post-processing that turns noise in high dimension into a small error.

``project_l1_ball`` is the projection of SGO's Algorithm 1 (Euclidean, onto the l1 ball); ``project_linf`` is
that of its Algorithm 3 (a point of the domain nearest in the largest coordinate). Neither sees data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_non_negative, check_positive
from sparsedp.mechanisms.histogram import check_array, check_vector


class Domain(Protocol):
    """A closed convex set that knows its l_inf-nearest points."""

    def linf_nearest(self, x: F64) -> F64:
        """A point of the set at the smallest l_inf distance from ``x``."""
        ...


def project_linf(x: ArrayLike, domain: Domain) -> F64:
    """A point of ``domain`` at the smallest l_inf distance from ``x``; ``x`` itself if it lies inside.

    Such points are seldom unique: where shrinking is needed, every coordinate is moved by no more than is
    needed and the smallest in absolute value is taken, so the answer tends to be sparse.
    """
    return domain.linf_nearest(check_vector("x", x))


def project_l1_ball(x: ArrayLike, radius: float) -> F64:
    """The Euclidean projection to the l1 ball of this ``radius``: soft thresholding (Duchi et al. 2008).

    It is also the l_inf-nearest point of that ball: both move every coordinate by the same threshold.
    """
    vector = check_vector("x", x)
    return _shrink(vector, _l1_threshold(np.abs(vector), check_non_negative("radius", radius)))


@dataclass(frozen=True)
class Box:
    """``low <= x <= high`` in every coordinate; scalars, or vectors of the dimension."""

    low: float | F64
    high: float | F64

    def __post_init__(self) -> None:
        if not np.all(check_array("low", self.low) <= check_array("high", self.high)):
            raise ValueError("low must not exceed high")

    def linf_nearest(self, x: F64) -> F64:
        """Clip every coordinate."""
        return np.clip(x, self.low, self.high)


@dataclass(frozen=True)
class Ball:
    """The Euclidean ball ``||x - center|| <= radius``."""

    radius: float
    center: float | F64 = 0.0

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)
        check_array("center", self.center)

    def linf_nearest(self, x: F64) -> F64:
        """Shrink all offsets from the centre by the smallest t that brings the norm to the radius.

        Among the points within l_inf distance t of x the one nearest to the centre is the shrunken one, so
        t is feasible iff that one lies in the ball.
        """
        offset = x - self.center
        return self.center + _shrink(offset, _l2_threshold(np.abs(offset), self.radius))


@dataclass(frozen=True)
class Simplex:
    """``x >= 0`` with ``sum(x) = total``."""

    total: float = 1.0

    def __post_init__(self) -> None:
        check_positive("total", self.total)

    def linf_nearest(self, x: F64) -> F64:
        """The smallest t for which the box ``|y - x| <= t`` meets the simplex, and a point where it does.

        The box's non-negative part holds vectors of every sum between that of its lower and that of its
        upper corner; t is the least for which it is not empty and those sums embrace the total.
        """
        if not x.size:
            raise ValueError("x must not be empty: no vector of length 0 sums to a positive total")
        t = max(
            float(-x.min()),  # the upper corner is not negative
            (self.total - float(x.sum())) / x.size,  # the upper corner sums to at least the total
            _l1_threshold(np.maximum(x, 0.0), self.total),  # the lower corner to at most the total
            0.0,
        )
        low, high = np.maximum(x - t, 0.0), np.maximum(x + t, 0.0)
        spare = float((high - low).sum())
        share = 0.0 if spare == 0.0 else (self.total - float(low.sum())) / spare
        return low + min(max(share, 0.0), 1.0) * (high - low)


def _shrink(x: F64, t: float) -> F64:
    return np.sign(x) * np.maximum(np.abs(x) - t, 0.0)


def _l1_threshold(magnitudes: F64, radius: float) -> float:
    """The smallest t >= 0 with ``sum(max(magnitudes - t, 0)) <= radius``."""
    if magnitudes.sum() <= radius:
        return 0.0
    largest = np.sort(magnitudes)[::-1]
    # With the first j+1 coordinates active, t = (their sum - radius) / (j+1); the true t is the largest.
    return float(np.max((np.cumsum(largest) - radius) / np.arange(1, largest.size + 1)))


def _l2_threshold(magnitudes: F64, radius: float) -> float:
    """The smallest t >= 0 with ``||max(magnitudes - t, 0)||_2 <= radius``."""
    if np.linalg.norm(magnitudes) <= radius:
        return 0.0
    largest = np.sort(magnitudes)[::-1]
    active = np.arange(1, largest.size + 1)
    mean = np.cumsum(largest) / active
    # sum over the first j of (a_i - t)^2 = j (mean - t)^2 + scatter, with the scatter summed without
    # cancellation (Welford); the t that brings it to radius^2, and the t at which coordinate j joins.
    joins = np.append(largest[1:], 0.0)
    steps = np.append(0.0, (largest[1:] - mean[:-1]) * (largest[1:] - mean[1:]))
    scatter = np.cumsum(steps)
    at_join = active * (mean - joins) ** 2 + scatter
    j = min(int(np.searchsorted(at_join, radius**2)), largest.size - 1)
    t = mean[j] - np.sqrt(max(radius**2 - scatter[j], 0.0) / active[j])
    return float(max(t, 0.0))
