"""The Laplace mechanism: pure epsilon-DP for values of bounded l1 sensitivity."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting.events import DpEvent, LaplaceDpEvent
from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_positive
from sparsedp.mechanisms.histogram import check_array
from sparsedp.randomness import Stream, noise_lattice, round_laplace


def laplace(values: ArrayLike, *, scale: float, stream: Stream) -> F64:
    """``values + Laplace(scale)`` on every coordinate, rounded to multiples of ``noise_lattice(scale)``.

    Guarantee: if one example moves ``values`` by at most ``Delta`` in l1, the event is ``Laplace(scale /
    Delta)``, that is (Delta / scale)-DP, under the same adjacency. Released: the noisy values, at most 2^36
    ``scale`` in magnitude.
    Proof: the densities of the two sums differ by at most e^(|x - x'|_1 / scale) (Dwork et al. 2006); rounding
    to a public lattice is post-processing. The integers have the probabilities of that rounded sum, whatever
    the values, to a relative 2^-40 (``round_laplace``): no float is ever added to noise.
    """
    array, lattice = check_array("values", values), noise_lattice(check_positive("scale", scale))
    return np.asarray(lattice * round_laplace(array, scale=scale, lattice=lattice, stream=stream))


def laplace_event(*, scale: float, sensitivity: float) -> DpEvent:
    """``Laplace(scale / sensitivity)``, with ``sensitivity`` in l1."""
    return LaplaceDpEvent(check_positive("scale", scale) / check_positive("sensitivity", sensitivity))
