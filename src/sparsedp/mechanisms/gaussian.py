"""The Gaussian mechanism: noise calibrated exactly, values rounded to a public grid."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.accounting.events import DpEvent, GaussianDpEvent, ZCDpEvent
from sparsedp.accounting.validation import check_count, check_positive
from sparsedp.mechanisms.grid import grid_integers
from sparsedp.mechanisms.histogram import Floats, check_array
from sparsedp.randomness import Stream, add_gaussian, discrete_gaussian


def gaussian_std(*, sensitivity: float, epsilon: float, delta: float) -> float:
    """The smallest standard deviation that makes ``gaussian`` (epsilon, delta)-DP at this l2 sensitivity."""
    return check_positive("sensitivity", sensitivity) * analytic_gaussian_sigma(epsilon, delta)


def gaussian(values: ArrayLike, *, std: float, stream: Stream) -> Floats:
    """``values + N(0, std^2)`` on every coordinate, in float64, rounded to ``grid_of(std)``.

    Guarantee: if one example moves ``values`` by at most ``Delta`` in l2, the event is ``Gaussian(std /
    Delta)`` under the same adjacency. Released: the noisy values.
    Proof: Balle and Wang 2018, theorem 8; rounding to a public grid is post-processing. The noise itself is
    a float: the grid and the sum of four normals hide its lattice but prove nothing; ``gaussian_on_grid``
    is the provable form.
    """
    return add_gaussian(check_array("values", values), check_positive("std", std), stream)


def gaussian_event(*, std: float, sensitivity: float) -> DpEvent:
    """``Gaussian(std / sensitivity)``, with ``sensitivity`` in l2."""
    return GaussianDpEvent(check_positive("std", std) / check_positive("sensitivity", sensitivity))


def gaussian_on_grid(values: ArrayLike, *, std: float, grid: float, stream: Stream) -> Floats:
    """``values`` rounded to multiples of ``grid``, plus an exact discrete Gaussian on the same multiples.

    Guarantee: ``gaussian_on_grid_event``, with no floating-point gap: everything private happens on
    integers; the noise is rounded up, to a whole number of grid squares. Released: the noisy multiples.
    Proof: rounding moves each coordinate by at most grid/2, so the rounded vectors of two neighbours are at
    most ``Delta + grid sqrt(m)`` apart where m coordinates may differ; the discrete Gaussian of parameter
    s^2 on integers at distance D is (D^2 / (2 s^2))-zCDP (Canonne, Kamath and Steinke 2020).
    """
    integers = grid_integers(values, grid=grid, scale=check_positive("std", std))
    variance = Fraction(math.ceil((Fraction(std) / Fraction(grid)) ** 2))
    noise = discrete_gaussian(stream, variance, integers.shape)
    return np.asarray(grid * (integers + noise), dtype=np.float64)


def gaussian_on_grid_event(*, std: float, grid: float, sensitivity: float, nonzeros: int) -> DpEvent:
    """zCDP of ``gaussian_on_grid``; ``nonzeros`` is how many coordinates two neighbours may differ in."""
    moved = check_positive("sensitivity", sensitivity) + check_positive("grid", grid) * math.sqrt(
        check_count("nonzeros", nonzeros)
    )
    return ZCDpEvent(0.5 * (moved / check_positive("std", std)) ** 2)
