"""The Laplace mechanism: pure epsilon-DP for values of bounded l1 sensitivity."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting.events import DpEvent, LaplaceDpEvent, PureDpEvent
from sparsedp.accounting.validation import check_count, check_positive
from sparsedp.mechanisms.grid import grid_integers
from sparsedp.mechanisms.histogram import Floats, check_array
from sparsedp.randomness import Stream, discrete_laplace, grid_of

_FINE = 2**16


def laplace(values: ArrayLike, *, scale: float, stream: Stream) -> Floats:
    """``values + Laplace(scale)`` on every coordinate, in float64, rounded to ``grid_of(scale)``.

    Guarantee: if one example moves ``values`` by at most ``Delta`` in l1, the event is ``Laplace(scale /
    Delta)``, that is (Delta / scale)-DP, under the same adjacency. Released: the noisy values.
    Proof: the densities of the two outputs differ by at most e^(|x - x'|_1 / scale) (Dwork et al. 2006);
    rounding to a public grid is post-processing. The grid hides the lattice of float noise but proves
    nothing about it; ``laplace_on_grid`` is the provable form.
    """
    array = check_array("values", values)
    grid = grid_of(check_positive("scale", scale))
    return np.rint((array + scale * stream.laplace(array.shape)) / grid) * grid


def laplace_event(*, scale: float, sensitivity: float) -> DpEvent:
    """``Laplace(scale / sensitivity)``, with ``sensitivity`` in l1."""
    return LaplaceDpEvent(check_positive("scale", scale) / check_positive("sensitivity", sensitivity))


def laplace_on_grid(values: ArrayLike, *, scale: float, grid: float, stream: Stream) -> Floats:
    """``values`` rounded to multiples of ``grid``, plus exact discrete Laplace noise on the same multiples.

    Guarantee: ``laplace_on_grid_event``, with no floating-point gap; the scale is rounded up to a short
    fraction of the grid. Released: the noisy multiples.
    Proof: rounding moves each coordinate by at most grid/2, so the rounded vectors of two neighbours are at
    most ``Delta + grid m`` apart in l1 where m coordinates may differ; the discrete Laplace pmf is
    proportional to e^(-|z| grid / scale), so the ratio is at most e^((Delta + grid m) / scale).
    """
    integers = grid_integers(values, grid=grid, scale=check_positive("scale", scale))
    steps = Fraction(math.ceil(Fraction(scale) / Fraction(grid) * _FINE), _FINE)
    noise = discrete_laplace(stream, steps, integers.shape)
    return np.asarray(grid * (integers + noise), dtype=np.float64)


def laplace_on_grid_event(*, scale: float, grid: float, sensitivity: float, nonzeros: int) -> DpEvent:
    """Event of ``laplace_on_grid``; ``nonzeros`` is how many coordinates two neighbours may differ in."""
    moved = check_positive("sensitivity", sensitivity) + check_positive("grid", grid) * check_count(
        "nonzeros", nonzeros
    )
    return PureDpEvent(moved / check_positive("scale", scale))
