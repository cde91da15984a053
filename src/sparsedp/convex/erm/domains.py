"""Where a minimiser may lie: the whole space, a box, a ball or a simplex, with Euclidean projections."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from sparsedp.core.arrays import F64
from sparsedp.mechanisms import Ball, Box, Simplex

__all__ = ["Ball", "Box", "Domain", "Simplex", "Unconstrained", "euclidean_nearest", "largest_norm"]


@dataclass(frozen=True)
class Unconstrained:
    """The whole space."""

    def linf_nearest(self, x: F64) -> F64:
        """The point itself."""
        return x


Domain = Unconstrained | Box | Ball | Simplex


@singledispatch
def euclidean_nearest(domain: Domain, x: F64) -> F64:
    """The point of ``domain`` nearest to ``x`` in l2."""
    raise TypeError(f"domain must be Unconstrained, Box, Ball or Simplex, got {type(domain).__name__}")


@euclidean_nearest.register
def _(domain: Unconstrained, x: F64) -> F64:
    return x


@euclidean_nearest.register
def _(domain: Box, x: F64) -> F64:
    return np.clip(x, domain.low, domain.high)


@euclidean_nearest.register
def _(domain: Ball, x: F64) -> F64:
    offset = x - domain.center
    norm = float(np.linalg.norm(offset))
    return x if norm <= domain.radius else domain.center + offset * (domain.radius / norm)


@euclidean_nearest.register
def _(domain: Simplex, x: F64) -> F64:
    # Subtract the t for which the positive parts sum to the total (Duchi et al. 2008).
    largest = np.sort(x)[::-1]
    levels = (np.cumsum(largest) - domain.total) / np.arange(1, x.size + 1)
    active = int(np.flatnonzero(largest > levels)[-1])
    return np.asarray(np.maximum(x - levels[active], 0.0))


def largest_norm(domain: Domain, dimension: int) -> float:
    """The norm of the point farthest from zero; infinite where there is none."""
    if isinstance(domain, Ball):
        return float(np.linalg.norm(np.broadcast_to(domain.center, dimension))) + domain.radius
    if isinstance(domain, Simplex):
        return domain.total
    if isinstance(domain, Box):
        farthest = np.maximum(np.abs(domain.low), np.abs(domain.high))
        return float(np.linalg.norm(np.broadcast_to(farthest, dimension)))
    return math.inf
