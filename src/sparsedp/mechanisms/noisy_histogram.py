"""A histogram with noise on every row, and what it says about the counts behind the noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.core.arrays import F64
from sparsedp.core.observing import draw
from sparsedp.core.validation import check_positive
from sparsedp.mechanisms.histogram import check_histogram
from sparsedp.randomness import Stream, noise_lattice, round_gaussian

_BINS_PER_STD, _FARTHEST = 8, 64
"""The density of noisy counts is known to an eighth of the noise; counts beyond 64 times the noise are taken as they are."""


@draw
def noisy_histogram(ids: ArrayLike, counts: ArrayLike, size: int, *, std: float, stream: Stream) -> F64:
    """``counts + N(0, std^2)`` of all ``size`` rows, in O(size) time and memory: for use once, before training.

    Guarantee: if one example moves the joint histogram by at most ``C`` in l2, the event is ``Gaussian(std / C)``
    under the same adjacency (``top_k_gaussian_event``). Released: every noisy count.
    Proof: the Gaussian mechanism on the histogram, rounded to a public lattice (``round_gaussian``).
    """
    touched, weights, size = check_histogram(ids, counts, size)
    lattice = noise_lattice(check_positive("std", std))
    dense = np.zeros(size)
    dense[touched] = weights
    cells = round_gaussian(dense, std=std, lattice=lattice, stream=stream)
    return np.multiply(cells, lattice, dtype=np.float64)


def expected_counts(noisy: F64, std: float) -> F64:
    """The mean count behind each noisy count of one table, given all of them: post-processing.

    Tweedie's formula (Robbins 1956; Efron 2011): ``E[count | noisy] = noisy + std^2 (log f)'(noisy)`` with the density f
    of the noisy counts, here smoothed by a Gaussian of half the noise, which counts as noise. Where nearly all rows have
    a count of zero, a noisy count of two standard deviations most likely means zero too.
    """
    near = np.abs(noisy) < _FARTHEST * std
    if not near.any():
        return np.maximum(noisy, 0.0)
    bandwidth = 0.5 * std
    width = std / _BINS_PER_STD
    known = noisy[np.abs(noisy) < _FARTHEST * std + 4.0 * bandwidth]
    low = float(known.min()) - 4.0 * bandwidth
    bins = np.bincount(((known - low) / width).astype(np.int64))
    offsets = np.arange(-2 * _BINS_PER_STD, 2 * _BINS_PER_STD + 1) * width
    kernel = np.exp(-0.5 * (offsets / bandwidth) ** 2)
    density = np.convolve(bins, kernel)
    slope = np.convolve(bins, -offsets / bandwidth**2 * kernel)
    at = ((noisy[near] - low) / width).astype(np.int64) + 2 * _BINS_PER_STD
    expected = noisy.copy()
    expected[near] += (std**2 + bandwidth**2) * slope[at] / density[at]
    return np.maximum(expected, 0.0)
