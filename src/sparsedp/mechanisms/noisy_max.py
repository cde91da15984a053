"""Report noisy max: the candidate whose score is largest after Laplace noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.core.arrays import I64
from sparsedp.mechanisms.exponential import FINE_BITS, below_best, check_candidates, inverse_temperature
from sparsedp.randomness import Stream, noise_lattice, round_laplace


def report_noisy_max(scores: ArrayLike, *, epsilon: float, sensitivity: float, stream: Stream) -> I64:
    """The index of the largest ``score + Laplace(2 sensitivity / epsilon)`` along the last axis.

    Leading axes of ``scores`` are independent runs; the answer has their shape.

    Guarantee: epsilon-DP, if one example moves each score by at most ``sensitivity``; where all scores move
    the same way by at most Delta, pass ``Delta / 2``. Event: ``PureDpEvent(epsilon)``. Released: the index
    alone.
    Proof: the answer does not change when a constant is added to all scores, so let every move lie in
    [0, 2 sensitivity]. Fix the noise of all other candidates; candidate i wins iff its noise passes a value
    that moves by at most 2 sensitivity, and a Laplace tail of scale 2 sensitivity / eps changes by at most
    e^eps over that distance. SGO's Algorithm 7 has half this scale. The noisy scores are integers of a lattice
    of 2^-40 of the scale (``round_laplace``): the value that the noise has to pass then moves by at most one
    cell more, which adds 2^-40 to epsilon, and so do the errors of the probabilities.
    """
    array, scale = check_candidates(scores), 1.0 / inverse_temperature(epsilon, sensitivity)
    lattice = noise_lattice(scale, FINE_BITS)
    keys = round_laplace(below_best(array, scale), scale=scale, lattice=lattice, stream=stream)
    return np.asarray(np.argmax(keys, axis=-1))
