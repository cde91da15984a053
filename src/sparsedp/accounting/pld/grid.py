"""Privacy losses on a grid, with pessimistic rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparsedp.accounting.pld.pairs import Pair
from sparsedp.accounting.pld.tilted import MAX_POINTS, GridTooLarge, TiltedLoss
from sparsedp.core.arrays import F64

_LARGE = 700.0  # e^700 is still a float
_CHECKED = 600.0  # up to here the masses of both P and Q have digits
_MISFIT = 1e-6  # the part of a cell's mass that rounding may misplace
_NOTHING = 1e-300  # masses of this size have lost their digits


@dataclass(frozen=True, eq=False)
class GridLoss:
    """Masses `p[i]`, `q[i]` at `step * (first + i)`; `infinity` is of P alone, `minus_infinity` of Q.

    Guarantee: as made by `discretise` it dominates the pair in both directions. Its delta at the grid
    points is that of the pair, and between them interpolates linearly in e^epsilon, above the pair's convex
    curve ("connect the dots", Doroshenko et al. 2022).
    """

    step: float
    first: int
    p: F64
    q: F64
    infinity: float
    minus_infinity: float

    @property
    def losses(self) -> F64:
        """The grid points."""
        return self.step * (self.first + np.arange(len(self.p), dtype=np.float64))

    def reversed(self) -> GridLoss:
        """P and Q exchanged."""
        first = 1 - self.first - len(self.p)
        return GridLoss(self.step, first, self.q[::-1], self.p[::-1], self.minus_infinity, self.infinity)

    def tilted(self, tilt: float) -> TiltedLoss:
        """The same losses with their masses multiplied by e^(tilt loss)."""
        with np.errstate(divide="ignore"):
            exponent = np.log(self.p) + tilt * self.losses
        top = float(exponent.max())
        masses = np.exp(exponent - top)
        total = float(masses.sum())
        return TiltedLoss(self.step, self.first, masses / total, top + math.log(total), tilt, self.infinity)


def discretise(pair: Pair, step: float, tail: float) -> GridLoss:
    """Put a pair on the grid of multiples of `step`; P-mass above its span may become infinite loss.

    A cell's masses (p, q) move to its two ends so that both P and Q keep them: `upper + lower = p` and
    `upper e^-high + lower e^-low = q`. Clipping `upper` to [0, p] only guards against rounding: mass of P or
    Q that is larger than the cell's losses allow, by more than rounding, becomes infinite loss, and so does what the
    cells of all losses lack of 1.
    """
    low, high = pair.span(tail)
    first, last = math.floor(low / step), math.ceil(high / step)
    if last - first >= MAX_POINTS:
        raise GridTooLarge
    edges = step * np.arange(first, last + 1, dtype=np.float64)
    p, q = (np.nan_to_num(masses) for masses in pair.cells(edges))  # what is undefined counts as missing
    inner_p, inner_q = p[1:-1], q[1:-1]
    with np.errstate(over="ignore"):
        growth = np.exp(np.minimum(edges, _LARGE))
    upper = np.clip((inner_p - inner_q * growth[:-1]) / -math.expm1(-step), 0, inner_p)
    upper_q = np.zeros_like(upper)
    np.divide(upper, growth[1:], out=upper_q, where=growth[1:] > 0)
    upper_q = np.minimum(upper_q, inner_q)
    grid_p, grid_q = np.zeros(len(edges)), np.zeros(len(edges))
    grid_p[1:], grid_q[1:] = upper, upper_q
    grid_p[:-1] += inner_p - upper
    grid_q[:-1] += inner_q - upper_q
    # Beyond the ends: what P has above moves down to the last point as far as Q has its share there, and
    # vice versa.
    stray_p, stray_q = _misplaced(inner_p, inner_q, edges)
    kept_p = min(float(p[-1]), float(q[-1] * growth[-1]))
    kept_q = min(float(q[0]), float(p[0]) * math.exp(min(-edges[0], _LARGE)))
    grid_p[-1] += kept_p
    grid_q[-1] += q[-1]
    grid_p[0] += p[0]
    grid_q[0] += kept_q
    infinity = float(p[-1]) - kept_p + stray_p + _missing(p)
    minus_infinity = float(q[0]) - kept_q + stray_q + _missing(q)
    return GridLoss(step, first, grid_p, grid_q, min(infinity, 1.0), min(minus_infinity, 1.0))


def _missing(masses: F64) -> float:
    """What the cells of a law lack of 1, beyond rounding; zero for a pair whose cells are right."""
    lacking = 1 - float(masses.sum())
    return lacking if lacking > _MISFIT else 0.0


def _misplaced(p: F64, q: F64, edges: F64) -> tuple[float, float]:
    """The masses of P and of Q that cannot belong to these cells, where e^low q <= p <= e^high q.

    They are zero for a pair whose cells are right. A pair that gets them wrong, at parameters nobody has
    thought of, then reports too large an epsilon and not too small a one.
    """
    within = (edges[:-1] > -_CHECKED) & (edges[1:] < _CHECKED)
    p, q = p[within], q[within]
    up, down = np.exp(edges[1:][within]), np.exp(-edges[:-1][within])
    above, below = p - q * up, q - p * down
    return (
        float(above[above > _MISFIT * p + _NOTHING * up].sum()),
        float(below[below > _MISFIT * q + _NOTHING * down].sum()),
    )
