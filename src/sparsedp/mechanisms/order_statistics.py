"""The largest k of m independent draws, without drawing the other m - k.

The j-th smallest of m standard exponentials is ``X_1/m + X_2/(m-1) + ... + X_j/(m-j+1)`` with independent
standard exponentials X (Renyi 1953). A decreasing map of an exponential E with ``P(noise > z) = 1 - e^-E``
turns these into the largest draws of any other law, jointly and exactly: E is right to a relative 2^-48, and the
probability to pass what it is turned into to 2^-41.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from sparsedp.core.arrays import F64, I64
from sparsedp.core.compiled import compiled
from sparsedp.mechanisms.histogram import sample_untouched
from sparsedp.randomness import Stream

SPARE = 64
"""How many more of the largest keys are drawn than can be chosen, for ties."""


def smallest_exponentials(m: int, *, k: int, stream: Stream) -> F64:
    """The ``min(k, m)`` smallest of ``m`` standard exponentials, in increasing order."""
    count = min(k, m)
    remaining = float(m) - np.arange(count, dtype=np.float64)
    return _running_sum(stream.exponential(count) / remaining)


@compiled
def _running_sum(terms: F64) -> F64:
    """Compensated (Kahan), so that the last of very many sums is as good as the first."""
    sums = np.empty_like(terms)
    total = lost = 0.0
    for i in range(terms.size):
        term = terms[i] - lost
        more = total + term
        lost = (more - total) - term
        total = more
        sums[i] = total
    return sums


def largest_gumbels(m: int, *, k: int, stream: Stream) -> F64:
    """The ``min(k, m)`` largest of ``m`` standard Gumbels, in decreasing order: a Gumbel is -log E."""
    return -np.log(smallest_exponentials(m, k=k, stream=stream))


def largest_normals(m: int, *, k: int, stream: Stream) -> F64:
    """The ``min(k, m)`` largest of ``m`` standard normals, in decreasing order."""
    e = smallest_exponentials(m, k=k, stream=stream)
    # P(Z > z) = 1 - e^-E. Below the median 1 - e^-E rounds to 1, so there the other tail is inverted.
    upper = -ndtri(-np.expm1(-np.minimum(e, 1.0)))
    return np.where(e < 1.0, upper, ndtri(np.exp(-e)))


def largest_laplaces(m: int, *, k: int, stream: Stream) -> F64:
    """The ``min(k, m)`` largest of ``m`` standard Laplace draws, in decreasing order."""
    e = smallest_exponentials(m, k=k, stream=stream)
    upper = -np.log(-2.0 * np.expm1(-np.minimum(e, math.log(2.0))))
    return np.where(e < math.log(2.0), upper, math.log(2.0) - e)


def cells_of(draws: F64, scale_cells: float) -> I64:
    """Standard draws as integers of a lattice on which their scale is ``scale_cells``."""
    return np.rint(draws * scale_cells).astype(np.int64)


def choose_largest(ids: I64, keys: I64, untouched_keys: I64, size: int, *, k: int, stream: Stream) -> I64:
    """The sorted rows of the ``k`` largest keys: ``keys`` of the touched rows, the largest of the untouched.

    Untouched rows are exchangeable: given how many of their keys are among the k largest, the rows that hold
    them are a uniformly random set. Ties for the last ranks are broken at random, so that whether a
    row was touched does not decide; for this ``untouched_keys`` holds ``SPARE`` more than could be chosen.
    """
    everything = np.concatenate([keys, untouched_keys])
    last = np.partition(everything, everything.size - k)[everything.size - k]
    above, tied = np.flatnonzero(everything > last), np.flatnonzero(everything == last)
    if above.size + tied.size > k:
        tied = tied[stream.permutation(tied.size)[: k - above.size]]
    chosen = np.concatenate([above, tied])
    winners = ids[chosen[chosen < ids.size]]
    lucky = sample_untouched(ids, size, k=k - winners.size, stream=stream)
    return np.sort(np.concatenate([winners, lucky]))
