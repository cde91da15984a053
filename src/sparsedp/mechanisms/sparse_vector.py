"""The sparse vector technique: which rows are above a threshold, and by how much (WIDE, Algorithm 1).

Offered because WIDE compares it. For choosing rows a Gaussian map with a threshold (``thresholded_counts``)
is the better tool: its noise does not grow with the number of rows found. For a thousand rows at epsilon 1
and delta 1e-6, with 26 rows an example, it needs about 30 times less noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting.events import DpEvent, SparseVectorDpEvent
from sparsedp.accounting.validation import check_count, check_finite, check_positive
from sparsedp.mechanisms.histogram import Floats, Ints, check_histogram, untouched_ids
from sparsedp.mechanisms.laplace import laplace
from sparsedp.randomness import Stream

_STRETCH = 4096
"""How many touched rows are compared with the threshold at a time."""


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
) -> Ints:
    """The first ``positives`` rows j, in order, with ``|values[j]| + Laplace >= threshold + Laplace``.

    The threshold's noise (``threshold_scale``) is drawn afresh after every row found; every row has its own
    noise (``query_scale``). Untouched rows are passed over by geometric gaps, never visited.

    Guarantee: if one example moves each value by at most ``Delta``, the event is ``sparse_vector_event``
    with that sensitivity: each round is (Delta / threshold_scale + 2 Delta / query_scale)-DP. Released: the
    ids, in increasing order, at most ``positives`` of them.
    Proof: each round up to and including a row found is AboveThreshold (Dwork and Roth 2014, theorem 3.23,
    with the two scales kept apart), and the rounds compose adaptively. Rows after the one found have not
    been compared yet, so their noise may be drawn at any time before.

    The round after the last is not begun: ``count >= c1`` stops. WIDE stops at ``count > c1``, after
    ``c1 + 1`` rows, and so spends one round that it does not account for.
    """
    touched, weights, size = check_histogram(ids, values, size)
    threshold, positives = check_finite("threshold", threshold), check_count("positives", positives)
    threshold_scale = check_positive("threshold_scale", threshold_scale)
    query_scale = check_positive("query_scale", query_scale)
    noisy = np.abs(weights) + query_scale * stream.laplace(touched.size)
    found: list[int] = []
    position = 0
    while len(found) < positives and position < size:
        noisy_threshold = threshold + threshold_scale * float(stream.laplace(1)[0])
        pass_probability = _laplace_tail(noisy_threshold / query_scale)
        hit = min(
            _next_touched(touched, noisy, position, size, noisy_threshold),
            _next_untouched(touched, position, size, pass_probability, stream),
        )
        if hit < size:
            found.append(hit)
        position = hit + 1
    return np.array(found, dtype=np.int64)


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
) -> tuple[Ints, Floats]:
    """The rows of ``sparse_vector`` and, for each, its value with Laplace noise of ``answer_scale``.

    Guarantee: ``sparse_vector_event`` with ``answer_scale``: each answer adds Delta / answer_scale. Released:
    the ids and the noisy values. Proof: given the ids, the answers are at most ``positives`` Laplace
    mechanisms of sensitivity Delta with noise of their own.
    """
    found = sparse_vector(
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
    at = np.searchsorted(touched, found)
    at[np.append(touched, -1)[at] != found] = touched.size
    return found, laplace(padded[at], scale=answer_scale, stream=stream)


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


def _laplace_tail(z: float) -> float:
    """P(standard Laplace >= z)."""
    return 0.5 * math.exp(-z) if z > 0 else 1.0 - 0.5 * math.exp(z)


def _next_touched(touched: Ints, noisy: Floats, position: int, size: int, threshold: float) -> int:
    """The first touched row from ``position`` on that passes, or ``size``."""
    for start in range(int(np.searchsorted(touched, position)), touched.size, _STRETCH):
        passes = noisy[start : start + _STRETCH] >= threshold
        first = int(np.argmax(passes))
        if passes[first]:
            return int(touched[start + first])
    return size


def _next_untouched(touched: Ints, position: int, size: int, probability: float, stream: Stream) -> int:
    """The first untouched row from ``position`` on that passes, or ``size``: a geometric gap of ranks."""
    first_rank = position - int(np.searchsorted(touched, position))
    remaining = size - touched.size - first_rank
    log_fail = math.log1p(-probability) if probability < 1.0 else -math.inf
    gap = math.log(float(stream.uniform(1)[0])) / log_fail if log_fail < 0.0 else math.inf
    if gap >= remaining:
        return size
    return int(untouched_ids(touched, np.array([first_rank + int(gap)]))[0])
