"""Permute-and-flip: the best of a few candidates, with less regret than the exponential mechanism."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.core.arrays import I64
from sparsedp.mechanisms.exponential import FINE_BITS, below_best, check_candidates, inverse_temperature
from sparsedp.randomness import Stream, noise_lattice, round_exponential


def permute_and_flip(scores: ArrayLike, *, epsilon: float, sensitivity: float, stream: Stream) -> I64:
    """In random order, toss coins of ``e^(epsilon (score - best) / (2 sensitivity))``; the first head wins.

    Drawn as the largest ``score + Exponential(2 sensitivity / epsilon)``, which has the same law. Leading axes
    of ``scores`` are independent runs; the answer has their shape.

    Guarantee: epsilon-DP, if one example moves each score by at most ``sensitivity``; where all scores move
    the same way by at most Delta, pass ``Delta / 2``. Event: ``PureDpEvent(epsilon)``. Released: the
    index. Its expected regret is never above that of the exponential mechanism at the same epsilon.
    Proof: the laws are the same (Ding et al. 2021), and for the exponential one the argument of
    ``report_noisy_max`` holds word for word, also where it speaks of the lattice: an exponential tail, too,
    changes by at most e^eps over the distance 2 sensitivity. Regret: McKenna and Sheldon 2020.
    """
    array, scale = check_candidates(scores), 1.0 / inverse_temperature(epsilon, sensitivity)
    lattice = noise_lattice(scale, FINE_BITS)
    keys = round_exponential(below_best(array, scale), scale=scale, lattice=lattice, stream=stream)
    return np.asarray(np.argmax(keys, axis=-1))
