"""Chernoff bounds on a composition: looser than its loss distribution, quick, and sound at every size of loss."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sparsedp.accounting.pld.grid import GridLoss, discretise
from sparsedp.accounting.pld.one_sided import Pairs
from sparsedp.core.arrays import F64, weighted_sum

_POINTS = 1 << 13
_TILTS: F64 = np.geomspace(1e-6, 1e12, 400)
_UNPLACED = 1e-6  # the part of delta that may go to losses off the grid
_ROUNDING = 1e-11  # of a sum over a grid, relative to its terms


def chernoff_epsilon(pairs: Pairs, reverse: bool, delta: float) -> float:
    """An upper bound on epsilon at `delta` of the product of pairs, P first or (when `reverse`) Q first.

    Proof: the grids dominate the pairs. A loss above epsilon has P-mass of at most exp(K(t) - t epsilon) for
    every t > 0, where K(t) = ln E_P e^(t loss) adds up over the product; delta is no more than that.
    """
    count = sum(times for _, times in pairs)
    log_growth, infinity = _growth(pairs, reverse, max(_UNPLACED * delta / count, 1e-300))
    if infinity >= delta:
        return math.inf
    epsilons = (log_growth - math.log(delta - infinity)) / _TILTS
    return max(float(np.min(epsilons)), 0.0)


def chernoff_delta(pairs: Pairs, reverse: bool, epsilon: float) -> float:
    """An upper bound on delta at `epsilon`, by the same means."""
    return float(chernoff_deltas(pairs, reverse, np.array([epsilon]))[0])


def chernoff_deltas(pairs: Pairs, reverse: bool, epsilons: F64) -> F64:
    """The same at each of many epsilons."""
    log_growth, infinity = _growth(pairs, reverse, 1e-300)
    log_delta = np.min(log_growth - np.outer(epsilons, _TILTS), axis=1)
    return np.asarray(np.minimum(infinity + np.exp(np.minimum(log_delta, 0.0)), 1.0), dtype=np.float64)


def _growth(pairs: Pairs, reverse: bool, tail: float) -> tuple[F64, float]:
    """K at all tilts, and a bound on the P-mass of infinite loss, of the whole product."""
    total, infinity = np.zeros(len(_TILTS)), 0.0
    for pair, count in pairs:
        low, high = pair.span(tail)
        step = max((high - low) / _POINTS, math.ulp(max(abs(low), abs(high))))
        loss = discretise(pair, step, tail)
        loss = loss.reversed() if reverse else loss
        total += count * np.array(list(_log_growth(loss)))
        infinity += count * loss.infinity
    return total, infinity


def _log_growth(loss: GridLoss) -> Iterator[float]:
    """An upper bound on ln E_P e^(t loss), at each tilt t."""
    losses, used = loss.losses, loss.p > 0
    losses, p = losses[used], loss.p[used]
    if not len(p):
        yield from np.zeros(len(_TILTS))
        return
    top = float(losses[-1])
    for tilt in _TILTS:
        if tilt * max(top, -losses[0]) < 1:
            # Close to ln 1: 1 is left out of the sum, and with it its rounding.
            terms = p * np.expm1(tilt * losses)
            yield math.log1p(float(terms.sum()) + _ROUNDING * float(np.abs(terms).sum()))
        else:
            mass = weighted_sum(p, np.exp(tilt * (losses - top)))
            yield tilt * top + math.log(mass) + _ROUNDING
