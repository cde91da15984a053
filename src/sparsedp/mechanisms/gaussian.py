"""The Gaussian mechanism: noise calibrated exactly, released on a public lattice."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.accounting.events import DpEvent, GaussianDpEvent
from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_positive
from sparsedp.mechanisms.histogram import check_array
from sparsedp.randomness import Stream, noise_lattice, round_gaussian


def gaussian_std(*, sensitivity: float, epsilon: float, delta: float) -> float:
    """The smallest standard deviation that makes ``gaussian`` (epsilon, delta)-DP at this l2 sensitivity."""
    return check_positive("sensitivity", sensitivity) * analytic_gaussian_sigma(epsilon, delta)


def gaussian(values: ArrayLike, *, std: float, stream: Stream) -> F64:
    """``values + N(0, std^2)`` on every coordinate, rounded to multiples of ``noise_lattice(std)``.

    Guarantee: if one example moves ``values`` by at most ``Delta`` in l2, the event is ``Gaussian(std /
    Delta)`` under the same adjacency. Released: the noisy values, at most 2^36 ``std`` in magnitude.
    Proof: Balle and Wang 2018, theorem 8, for the sum with continuous noise; rounding it to a public lattice
    is post-processing. The integers have the probabilities of that rounded sum, for any values, to a
    relative 2^-40 (``round_gaussian``): no float is ever added to noise.
    """
    array, lattice = check_array("values", values), noise_lattice(check_positive("std", std))
    return np.asarray(lattice * round_gaussian(array, std=std, lattice=lattice, stream=stream))


def gaussian_event(*, std: float, sensitivity: float) -> DpEvent:
    """``Gaussian(std / sensitivity)``, with ``sensitivity`` in l2."""
    return GaussianDpEvent(check_positive("std", std) / check_positive("sensitivity", sensitivity))
