"""DP-AdaFEST's contribution map, thresholded (FEST, Algorithm 1 lines 6 and 8, and appendix B.2)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import F64, I64
from sparsedp.core.compiled import compiled
from sparsedp.core.observing import draw
from sparsedp.core.validation import check_finite, check_positive
from sparsedp.mechanisms.gaussian import gaussian_event
from sparsedp.mechanisms.histogram import check_histogram
from sparsedp.randomness import (
    Stream,
    bernoulli_positions,
    noise_lattice,
    passing_cell,
    passing_probability,
    round_gaussian,
)


def thresholded_counts(
    ids: ArrayLike, counts: ArrayLike, size: int, *, std: float, threshold: float, stream: Stream
) -> I64:
    """The sorted rows j with ``counts[j] + N(0, std^2) >= threshold``, over all ``size`` rows.

    Untouched rows survive independently with probability ``Psi(threshold / std)``; their survivors are
    placed by geometric gaps, so time and memory are those of the touched rows and the survivors.

    Guarantee: if one example moves the counts by at most ``C1`` in l2 (sum of the v_i, each clipped to
    C1), the event is ``Gaussian(std / C1)`` under the same adjacency. Released: the surviving ids.
    Proof: the bits are post-processing of the Gaussian mechanism on the count vector, rounded to a lattice of
    at most ``std / 2^24`` (``round_gaussian``): row j survives iff its integer is at least that of the
    threshold. The bits of distinct rows are independent, so drawing them in two groups changes nothing; hits
    of the gaps that fall on touched rows are discarded, since those have drawn their own bit. Both groups'
    probabilities are right to a relative 2^-40.

    The standard deviation is ``sigma1 * C1``. FEST's appendix B.2 divides by ``sigma1^2 * C1^2``.
    """
    touched, weights, size = check_histogram(ids, counts, size)
    std, threshold = check_positive("std", std), check_finite("threshold", threshold)
    return draw_survivors(touched, weights, size, std, threshold, stream)


@draw
def draw_survivors(touched: I64, counts: F64, size: int, std: float, threshold: float, stream: Stream) -> I64:
    """The same for a histogram that is known to be one: the rows of a step."""
    lattice = noise_lattice(std)
    lowest = passing_cell(threshold, lattice)
    noisy = round_gaussian(counts, std=std, lattice=lattice, stream=stream)
    hits = bernoulli_positions(stream, size, passing_probability(lowest, std / lattice))
    survivors = np.empty(touched.size + hits.size, np.int64)
    return survivors[: _survivors(touched, noisy, lowest, hits, survivors)]


@compiled
def _survivors(touched: I64, noisy: I64, lowest: int, hits: I64, survivors: I64) -> int:
    """Find touched rows above the threshold and hits on other rows, in order; how many there are."""
    count = hit = 0
    for n in range(touched.size):
        while hit < hits.size and hits[hit] <= touched[n]:
            if hits[hit] < touched[n]:
                survivors[count] = hits[hit]
                count += 1
            hit += 1
        if noisy[n] >= lowest:
            survivors[count] = touched[n]
            count += 1
    rest = hits.size - hit
    survivors[count : count + rest] = hits[hit:]
    return count + rest


def threshold_for_false_positives(expected: float, rows: int, std: float) -> float:
    """The threshold `std Psi^-1(expected / rows)`: so many of `rows` rows without a count pass it by noise alone.

    At least zero: a lower one would let half of the rows or more pass.
    """
    return std * float(-ndtri(min(expected / rows, 0.5))) if rows else math.inf


def thresholded_counts_event(*, std: float, sensitivity: float) -> DpEvent:
    """One Gaussian on the count vector; ``sensitivity`` is C1."""
    return gaussian_event(std=std, sensitivity=sensitivity)
