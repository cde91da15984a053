"""The exponential mechanism by Gumbel keys: one draw of a few candidates, or k draws of very many rows."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting.events import BoundedRangeGaussianDpEvent, DpEvent
from sparsedp.core.arrays import F64, I64
from sparsedp.core.observing import draw
from sparsedp.core.validation import check_count, check_epsilon, check_positive
from sparsedp.mechanisms.histogram import check_array, check_choice, check_histogram
from sparsedp.mechanisms.order_statistics import SPARE, cells_of, choose_largest, largest_gumbels
from sparsedp.randomness import Stream, noise_lattice, round_gumbel

FINE_BITS = 40
"""Where the largest of a few scores is released, the lattice of their keys is 2^-40 of the noise."""
_IRRELEVANT = 2.0**20
"""A score so many noise scales below the best never wins."""


def exponential(scores: ArrayLike, *, epsilon: float, sensitivity: float, stream: Stream) -> I64:
    """One candidate of the last axis, drawn with weights ``e^(epsilon score / (2 sensitivity))``.

    Leading axes of ``scores`` are independent runs; the answer has their shape.

    Guarantee: epsilon-DP and epsilon-bounded-range, if one example moves each score by at most
    ``sensitivity``. Only the spread of the moves counts, the largest minus the smallest, which must be at
    most ``2 * sensitivity``: where all scores move the same way by at most Delta, pass ``Delta / 2``.
    Released: the index. Event: one epsilon-bounded-range draw.
    Proof: a log-probability moves by its score's move times eps / (2 sensitivity) less a common constant,
    so all moves lie in an interval of length eps, which contains zero since probabilities sum to one
    (McSherry and Talwar 2007; bounded range: Durfee and Rogers 2019). The largest of ``score +
    Gumbel(2 sensitivity / eps)`` has this law. Keys are integers of a lattice of 2^-40 of that scale; rounding
    and float noise move each by less than that, so every probability is right to a relative 2^-38.
    """
    array, scale = check_candidates(scores), 1.0 / inverse_temperature(epsilon, sensitivity)
    lattice = noise_lattice(scale, FINE_BITS)
    keys = round_gumbel(below_best(array, scale), scale=scale, lattice=lattice, stream=stream)
    return np.asarray(np.argmax(keys, axis=-1))


@draw
def exponential_top_k(
    ids: ArrayLike,
    scores: ArrayLike,
    size: int,
    *,
    k: int,
    epsilon: float,
    sensitivity: float,
    stream: Stream,
) -> I64:
    """``k`` draws without replacement among all ``size`` rows (WIDE, Algorithm 4); the sorted ids.

    Rows that are not in ``ids`` have the score zero. They are never written down: the largest of their
    Gumbel keys come from order statistics and their ids are drawn uniformly.

    Guarantee: each draw is ``epsilon``-bounded-range, if one example moves each score by at most
    ``sensitivity`` (only the spread of the moves counts, see ``exponential``); k draws are (k epsilon)-DP
    and (k epsilon^2 / 8)-zCDP. Released: the set of ids. Event: ``exponential_event(draws=k, ...)``.
    Proof: one Gumbel key per row and the k largest keys are k successive draws of the exponential
    mechanism, each among the rows not yet drawn; each is epsilon-bounded-range given those before.
    Bounded range eps implies eps^2/8-zCDP (Cesar and Rogers 2021). Keys are integers of a public lattice, ties
    fall at random (``choose_largest``): the probability that a row passes any other's key is right to 2^-40.

    Exactly ``k`` rows are drawn. WIDE's loop runs ``k + 1`` times and marks a drawn row with minus infinity
    before scoring its absolute value, which would draw it again.
    """
    touched, values, size = check_histogram(ids, scores, size)
    k, scale = check_choice(k, size), 1.0 / inverse_temperature(epsilon, sensitivity)
    lattice = noise_lattice(scale)
    keys = round_gumbel(values, scale=scale, lattice=lattice, stream=stream)
    others = largest_gumbels(size - touched.size, k=k + SPARE, stream=stream)
    return choose_largest(touched, keys, cells_of(others, scale / lattice), size, k=k, stream=stream)


def exponential_event(*, draws: int = 1, epsilon: float, noise_multiplier: float = math.inf) -> DpEvent:
    """``draws`` epsilon-bounded-range draws and, with a ``noise_multiplier``, one Gaussian on the same data."""
    return BoundedRangeGaussianDpEvent(
        draws=check_count("draws", draws), epsilon=check_epsilon(epsilon), noise_multiplier=noise_multiplier
    )


def inverse_temperature(epsilon: float, sensitivity: float) -> float:
    """``epsilon / (2 sensitivity)``: the factor 2 since two scores may move apart."""
    return check_epsilon(epsilon) / (2.0 * check_positive("sensitivity", sensitivity))


def below_best(scores: F64, scale: float) -> F64:
    """Each score minus the best of its run, cut off where it no longer matters.

    For two neighbours the moves of the results lie within the interval of the scores' moves, less a constant.
    """
    with np.errstate(over="ignore"):
        below = scores - scores.max(axis=-1, keepdims=True)
    return np.asarray(np.maximum(below, -_IRRELEVANT * scale))


def check_candidates(scores: ArrayLike) -> F64:
    """Finite scores with at least one candidate on the last axis."""
    array = check_array("scores", scores)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"scores must hold at least one candidate, got shape {array.shape}")
    return array
