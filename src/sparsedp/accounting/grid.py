"""Privacy losses on a grid, rounded so that nothing is understated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparsedp.accounting.pairs import Array, Pair
from sparsedp.accounting.tilted import TiltedLoss

_LARGE = 700.0  # e^700 is still a float


@dataclass(frozen=True, eq=False)
class GridLoss:
    """Losses at `step * (first + i)` with P-mass `p[i]`, plus `infinity` (P alone) and `minus_infinity` (Q alone).

    Guarantee: as made by `discretise` it dominates the pair in both directions. Its delta at the grid points is that of
    the pair, and between them interpolates linearly in e^epsilon, above the pair's convex curve ("connect the dots",
    Doroshenko et al. 2022).
    """

    step: float
    first: int
    p: Array
    infinity: float
    minus_infinity: float

    @property
    def losses(self) -> Array:
        """The grid points."""
        return self.step * (self.first + np.arange(len(self.p), dtype=np.float64))

    def reversed(self) -> GridLoss:
        """P and Q exchanged."""
        q = self.p * np.exp(-self.losses)
        return GridLoss(self.step, 1 - self.first - len(q), q[::-1].copy(), self.minus_infinity, self.infinity)

    def tilted(self, tilt: float) -> TiltedLoss:
        """The same losses with their masses multiplied by e^(tilt loss)."""
        with np.errstate(divide="ignore"):
            exponent = np.log(self.p) + tilt * self.losses
        top = float(exponent.max())
        masses = np.exp(exponent - top)
        total = float(masses.sum())
        return TiltedLoss(self.step, self.first, masses / total, top + math.log(total), tilt, self.infinity)


def discretise(pair: Pair, step: float, tail: float) -> GridLoss:
    """Put a pair on the grid of multiples of `step`; P-mass above its span (at most `tail`) may become infinite loss.

    A cell's masses (p, q) move to its two ends so that both P and Q keep them: `upper + lower = p` and
    `upper e^-high + lower e^-low = q`. Clipping `upper` to [0, p] only guards against rounding.
    """
    low, high = pair.span(tail)
    first = math.floor(low / step)
    edges = step * np.arange(first, math.ceil(high / step) + 1, dtype=np.float64)
    p, q = pair.cells(edges)
    with np.errstate(over="ignore", invalid="ignore"):
        upper = (p[1:-1] - q[1:-1] * np.exp(np.minimum(edges[:-1], _LARGE))) / -math.expm1(-step)
    upper = np.clip(upper, 0, p[1:-1])
    masses = np.zeros(len(edges))
    masses[1:] += upper
    masses[:-1] += p[1:-1] - upper
    kept = min(float(p[-1]), float(q[-1]) * math.exp(min(edges[-1], _LARGE)))
    masses[-1] += kept
    masses[0] += p[0]
    below = max(float(q[0]) - float(p[0]) * math.exp(min(-edges[0], _LARGE)), 0.0)
    return GridLoss(step, first, masses, float(p[-1]) - kept, below)
