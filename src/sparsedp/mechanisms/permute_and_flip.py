"""Permute-and-flip: the best of a few candidates, with less regret than the exponential mechanism."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting.events import DpEvent, PureDpEvent
from sparsedp.accounting.validation import check_epsilon
from sparsedp.mechanisms.exponential import check_candidates, inverse_temperature
from sparsedp.mechanisms.histogram import Ints
from sparsedp.randomness import Stream


def permute_and_flip(scores: ArrayLike, *, epsilon: float, sensitivity: float, stream: Stream) -> Ints:
    """In random order, toss coins of ``e^(epsilon (score - best) / (2 sensitivity))``; the first head wins.

    Leading axes of ``scores`` are independent runs; the answer has their shape.

    Guarantee: epsilon-DP, if one example moves each score by at most ``sensitivity``; where all scores move
    the same way by at most Delta, pass ``Delta / 2``. Released: the index. Its expected regret is never
    above that of the exponential mechanism at the same epsilon.
    Proof: the same law as the largest ``score + Exponential(2 sensitivity / eps)`` (Ding et al. 2021), for
    which the argument of ``report_noisy_max`` holds word for word: an exponential tail, too, changes by at
    most e^eps over the distance 2 sensitivity. Regret: McKenna and Sheldon 2020.
    """
    array = check_candidates(scores)
    heads_probability = np.exp(
        (array - array.max(axis=-1, keepdims=True)) * inverse_temperature(epsilon, sensitivity)
    )
    heads = stream.uniform(array.shape) <= heads_probability
    # The first head of a random order is the head with the largest of independent priorities.
    priority = stream.uniform(array.shape)
    return np.asarray(np.argmax(np.where(heads, priority, -1.0), axis=-1))


def permute_and_flip_event(*, epsilon: float) -> DpEvent:
    """Any epsilon-DP mechanism."""
    return PureDpEvent(check_epsilon(epsilon))
