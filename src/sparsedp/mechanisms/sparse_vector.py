"""The sparse vector technique: which rows are above a threshold, and by how much (WIDE, Algorithm 1).

Offered because WIDE compares it. For choosing rows a Gaussian map with a threshold (``thresholded_counts``)
is the better tool: its noise does not grow with the number of rows found. For a thousand rows at epsilon 1
and delta 1e-6, with 26 rows an example, it needs 35 times less noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting.events import DpEvent, SparseVectorDpEvent
from sparsedp.core.arrays import F64, I64
from sparsedp.core.observing import draw
from sparsedp.core.validation import check_count, check_finite, check_positive
from sparsedp.mechanisms.histogram import check_histogram
from sparsedp.mechanisms.laplace import laplace
from sparsedp.randomness import Stream, geometric, noise_lattice, round_laplace

_STRETCH = 4096
"""How many touched rows are compared with the threshold at a time."""
_LATTICE_BITS = 44
_LARGEST_RATIO = 1024
_REACH = 2.0**14
"""In units of the larger scale; noise reaches 64."""


@draw
def sparse_vector(
    ids: ArrayLike,
    values: ArrayLike,
    size: int,
    *,
    threshold: float,
    positives: int,
    threshold_scale: float,
    query_scale: float,
    stream: Stream,
) -> I64:
    """The first ``positives`` rows j, in order, with ``|values[j]| + Laplace >= threshold + Laplace``.

    The threshold's noise (``threshold_scale``) is drawn afresh after every row found; every row has its own
    noise (``query_scale``). Untouched rows are passed over by geometric gaps, never visited.

    Guarantee: if one example moves each value by at most ``Delta``, the event is ``sparse_vector_event``
    with that sensitivity: each round is (Delta / threshold_scale + 2 Delta / query_scale)-DP. Released: the
    ids, in increasing order, at most ``positives`` of them.
    Proof: each round up to and including a row found is AboveThreshold (Dwork and Roth 2014, theorem 3.23,
    with two separate scales), and the rounds compose adaptively. Rows after the one found have not
    been compared yet, so their noise may be drawn at any time before. Noisy values and thresholds are integers
    of a lattice of 2^-44 of the larger scale (``round_laplace``), less the threshold, cut where noise never
    reaches: this keeps order and distances, but that the proof's shifts by Delta become whole cells. A round
    costs at most 2^-32 more for it, as the scales are within a factor of 1024 of each other.

    The round after the last is not begun: ``count >= c1`` stops. WIDE stops at ``count > c1``, after
    ``c1 + 1`` rows, and so spends one round that it does not account for.
    """
    touched, weights, size = check_histogram(ids, values, size)
    rounds = min(check_count("positives", positives), size)
    lattice, reach = _lattice_and_reach(threshold_scale, query_scale)
    above = np.abs(weights) - check_finite("threshold", threshold)
    noisy_thresholds = round_laplace(np.zeros(rounds), scale=threshold_scale, lattice=lattice, stream=stream)
    noisy = round_laplace(np.clip(above, -reach, reach), scale=query_scale, lattice=lattice, stream=stream)
    untouched = min(max(-threshold, -reach), reach)
    borders = (noisy_thresholds.astype(np.float64) - 0.5) * lattice
    gaps = _geometric_gaps((borders - untouched) / query_scale, stream)
    untouched_before = touched - np.arange(touched.size)
    selected: list[int] = []
    position = 0
    for noisy_threshold, gap in zip(noisy_thresholds.tolist(), gaps.tolist(), strict=True):
        start = int(np.searchsorted(touched, position))
        rank = position - start + gap
        next_untouched = rank + int(np.searchsorted(untouched_before, rank, side="right"))
        hit = min(_next_touched(touched, noisy, start, size, noisy_threshold), next_untouched)
        if hit >= size:
            break
        selected.append(hit)
        position = hit + 1
    return np.array(selected, dtype=np.int64)


def numeric_sparse(
    ids: ArrayLike,
    values: ArrayLike,
    size: int,
    *,
    threshold: float,
    positives: int,
    threshold_scale: float,
    query_scale: float,
    answer_scale: float,
    stream: Stream,
) -> tuple[I64, F64]:
    """The rows of ``sparse_vector`` and, for each, its value with Laplace noise of ``answer_scale``.

    Guarantee: ``sparse_vector_event`` with ``answer_scale``: each answer adds Delta / answer_scale. Released:
    the ids and the noisy values. Proof: given the ids, the answers are at most ``positives`` Laplace
    mechanisms of sensitivity Delta with independent noise.
    """
    selected = sparse_vector(
        ids,
        values,
        size,
        threshold=threshold,
        positives=positives,
        threshold_scale=threshold_scale,
        query_scale=query_scale,
        stream=stream,
    )
    touched, weights, _ = check_histogram(ids, values, size)
    padded = np.append(weights, 0.0)
    at = np.searchsorted(touched, selected)
    at[np.append(touched, -1)[at] != selected] = touched.size
    return selected, laplace(padded[at], scale=answer_scale, stream=stream)


def sparse_vector_event(
    *,
    positives: int,
    sensitivity: float,
    threshold_scale: float,
    query_scale: float,
    answer_scale: float = math.inf,
) -> DpEvent:
    """Event of ``sparse_vector`` and, with an ``answer_scale``, of ``numeric_sparse``."""
    unit = check_positive("sensitivity", sensitivity)
    return SparseVectorDpEvent(
        positives=check_count("positives", positives),
        threshold_scale=check_positive("threshold_scale", threshold_scale) / unit,
        query_scale=check_positive("query_scale", query_scale) / unit,
        answer_scale=answer_scale / unit,
    )


def _lattice_and_reach(threshold_scale: float, query_scale: float) -> tuple[float, float]:
    """The lattice of noisy values and thresholds, and how far from the threshold values count."""
    smaller, larger = sorted(
        (check_positive("threshold_scale", threshold_scale), check_positive("query_scale", query_scale))
    )
    if larger > _LARGEST_RATIO * smaller:
        raise ValueError(
            f"threshold_scale and query_scale must be within a factor of {_LARGEST_RATIO} of each other, "
            f"got {threshold_scale} and {query_scale}"
        )
    return noise_lattice(larger, _LATTICE_BITS), _REACH * larger


def _geometric_gaps(z: F64, stream: Stream) -> I64:
    """For each round, how many untouched rows fail before one passes: has Laplace(1) noise of at least z."""
    log_fail = np.where(z > 0.0, np.log1p(-0.5 * np.exp(-np.abs(z))), np.minimum(z, 0.0) - math.log(2.0))
    return geometric(log_fail, stream)


def _next_touched(touched: I64, noisy: I64, start: int, size: int, threshold: int) -> int:
    """The first touched row, from the ``start``-th on, that passes; ``size`` if there is none."""
    for begin in range(start, touched.size, _STRETCH):
        passes = noisy[begin : begin + _STRETCH] >= threshold
        first = int(np.argmax(passes))
        if passes[first]:
            return int(touched[begin + first])
    return size
