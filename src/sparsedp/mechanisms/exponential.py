"""The exponential mechanism by Gumbel keys: one draw of a few candidates, or k draws of very many rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting.events import BoundedRangeGaussianDpEvent, DpEvent
from sparsedp.accounting.validation import check_count, check_epsilon, check_positive
from sparsedp.mechanisms.histogram import Ints, check_array, check_choice, check_histogram
from sparsedp.mechanisms.order_statistics import choose_largest, largest_gumbels
from sparsedp.randomness import Stream


def exponential(scores: ArrayLike, *, epsilon: float, sensitivity: float, stream: Stream) -> Ints:
    """One candidate of the last axis, drawn with weights ``e^(epsilon score / (2 sensitivity))``.

    Leading axes of ``scores`` are independent runs; the answer has their shape.

    Guarantee: epsilon-DP and epsilon-bounded-range, if one example moves each score by at most
    ``sensitivity``. Only the spread of the moves counts, the largest minus the smallest, which must be at
    most ``2 * sensitivity``: where all scores move the same way by at most Delta, pass ``Delta / 2``.
    Released: the index. Event: one epsilon-bounded-range draw.
    Proof: a log-probability moves by its score's move times eps / (2 sensitivity) less a common constant,
    so all moves lie in an interval of length eps, which contains zero since probabilities sum to one
    (McSherry and Talwar 2007; bounded range: Durfee and Rogers 2019). The largest of ``eps score /
    (2 sensitivity) + Gumbel`` has this law.
    """
    weighted = check_candidates(scores) * inverse_temperature(epsilon, sensitivity)
    return np.asarray(np.argmax(weighted + stream.gumbel(weighted.shape), axis=-1))


def exponential_top_k(
    ids: ArrayLike,
    scores: ArrayLike,
    size: int,
    *,
    k: int,
    epsilon: float,
    sensitivity: float,
    stream: Stream,
) -> Ints:
    """``k`` draws without replacement among all ``size`` rows (WIDE, Algorithm 4); the sorted ids.

    Rows that are not in ``ids`` have the score zero. They are never written down: the largest of their
    Gumbel keys come from order statistics and their ids are drawn uniformly.

    Guarantee: each draw is ``epsilon``-bounded-range, if one example moves each score by at most
    ``sensitivity`` (only the spread of the moves counts, see ``exponential``); k draws are (k epsilon)-DP
    and (k epsilon^2 / 8)-zCDP. Released: the set of ids. Event: ``exponential_event(draws=k, ...)``.
    Proof: one Gumbel key per row and the k largest keys are k successive draws of the exponential
    mechanism, each among the rows not yet drawn; each is epsilon-bounded-range given those before.
    Bounded range eps implies eps^2/8-zCDP (Cesar and Rogers 2021).

    Exactly ``k`` rows are drawn. WIDE's loop runs ``k + 1`` times and marks a drawn row with minus infinity
    before scoring its absolute value, which would draw it again.
    """
    touched, values, size = check_histogram(ids, scores, size)
    k = check_choice(k, size)
    keys = values * inverse_temperature(epsilon, sensitivity) + stream.gumbel(touched.size)
    others = largest_gumbels(size - touched.size, k=k, stream=stream)
    return choose_largest(touched, keys, others, size, k=k, stream=stream)


def exponential_event(*, draws: int = 1, epsilon: float) -> DpEvent:
    """``draws`` epsilon-bounded-range draws and nothing else."""
    return BoundedRangeGaussianDpEvent(draws=check_count("draws", draws), epsilon=check_epsilon(epsilon))


def inverse_temperature(epsilon: float, sensitivity: float) -> float:
    """``epsilon / (2 sensitivity)``: the factor 2 since two scores may move apart."""
    return check_epsilon(epsilon) / (2.0 * check_positive("sensitivity", sensitivity))


def check_candidates(scores: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Finite scores with at least one candidate on the last axis."""
    array = check_array("scores", scores)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"scores must hold at least one candidate, got shape {array.shape}")
    return array
