"""Several releases of one batch, as one pair: the convolution of their losses, precise to the far tails."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sparsedp.accounting.pld.grid import GridLoss, discretise
from sparsedp.accounting.pld.pairs import Atoms, Pair, Unresolved
from sparsedp.accounting.pld.sketch import Sketch
from sparsedp.accounting.pld.tilted import TiltedLoss, convolve
from sparsedp.core.arrays import F64

_RESOLUTION = 0.01  # of the standard deviation of the joint loss, or of 1 where that is wider
_MAX_POINTS = 1 << 21
_REACH = 4.0  # the next tilt's mean is about this many standard deviations away
_TAIL = 1e-60
_LOG_NEGLIGIBLE = -28.0


def joint(parts: Sequence[tuple[Pair, int]]) -> Pair:
    """The product of pairs, each taken `count` times: what all these releases of the same data reveal.

    Guarantee: dominates the product in both directions, hence may be Poisson sampled as a whole. Proof:
    every factor is discretised upwards (`discretise`), losses of independent factors add, and P-mass lost
    from the window is infinite loss.
    """
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    sketch = Sketch.of(parts, _TAIL)
    count = sum(times for _, times in parts)
    spread = math.sqrt(max(sketch.moments(0.0)[1], 1e-300))
    low, high = sketch.window(_TAIL)
    if not low <= high:
        raise Unresolved
    width = _RESOLUTION * min(spread, 1.0) / math.sqrt(count)
    step = 2.0 ** math.floor(math.log2(max(width, (high - low) / _MAX_POINTS)))
    losses = [(discretise(pair, step, _TAIL), times) for pair, times in parts]
    return _stitched(losses, sketch, low, high, all(pair.symmetric for pair, _ in parts))


def _stitched(
    losses: Sequence[tuple[GridLoss, int]], sketch: Sketch, low: float, high: float, symmetric: bool
) -> Atoms:
    """Compose under a ladder of tilts, and take each loss from the tilt that sees it best."""
    step = losses[0][0].step
    first, last = math.floor(low / step), math.ceil(high / step)
    log_p = np.full(last - first + 1, -np.inf)
    log_noise = np.full(last - first + 1, np.inf)
    for tilt in sketch.ladder(low, high, _REACH):
        composed = convolve(
            [loss.tilted(tilt).repeated(times, _LOG_NEGLIGIBLE, 0.0) for loss, times in losses]
        )
        _lay(composed, first, log_p, log_noise)
    grid = step * np.arange(first, last + 1, dtype=np.float64)
    p, q = np.exp(log_p), np.exp(log_p - grid)
    infinity = sum(times * loss.infinity for loss, times in losses) + _TAIL
    minus_infinity = sum(times * loss.minus_infinity for loss, times in losses) + _TAIL
    return Atoms(grid, p, q, infinity, minus_infinity, symmetric)


def _lay(composed: TiltedLoss, first: int, log_p: F64, log_noise: F64) -> None:
    """Write ln P-mass wherever this tilt's rounding, in proportion to e^(log_scale - tilt loss), is the least."""
    start, stop = max(composed.first, first), min(composed.first + len(composed.weights), first + len(log_p))
    if start >= stop:
        return
    source = slice(start - composed.first, stop - composed.first)
    target = slice(start - first, stop - first)
    level = composed.log_scale - composed.tilt * composed.losses[source]
    better = level < log_noise[target]
    with np.errstate(divide="ignore"):
        log_p[target] = np.where(better, np.log(composed.weights[source]) + level, log_p[target])
    log_noise[target] = np.where(better, level, log_noise[target])
