"""A histogram over very many rows, given by its touched rows only: (ids, values, size).

``ids`` are the touched rows, sorted and distinct; every other row of ``range(size)`` has the
value zero and is never written down. What the mechanisms ask of the untouched rows is answered here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.core.arrays import F64, I64
from sparsedp.core.compiled import compiled
from sparsedp.core.validation import check_count
from sparsedp.randomness import Stream

LARGEST_SIZE = 2**62


def check_histogram(ids: ArrayLike, values: ArrayLike, size: int) -> tuple[I64, F64, int]:
    """The three parts as int64, float64 and int, or a `ValueError` that names the wrong one."""
    size = check_count("size", size, maximum=2**62)
    if size > LARGEST_SIZE:
        raise ValueError(f"size must be at most 2^62, got {size}")
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"ids must be a vector of integers, got shape {array.shape} of {array.dtype}")
    touched = array.astype(np.int64, copy=False)
    if not _ascend_within(touched, size):
        raise ValueError(f"ids must be sorted, distinct and within range({size})")
    weights = check_vector("values", values)
    if weights.shape != touched.shape:
        raise ValueError(f"values must be one per id, got {weights.size} for {touched.size} ids")
    return touched, weights, size


@compiled
def _ascend_within(ids: I64, size: int) -> bool:
    previous = np.int64(-1)
    for each in ids:
        if each <= previous or each >= size:
            return False
        previous = each
    return True


def check_vector(name: str, values: ArrayLike) -> F64:
    """A finite float64 vector."""
    vector = check_array(name, values)
    if vector.ndim != 1:
        raise ValueError(f"{name} must be a vector, got shape {vector.shape}")
    return vector


def check_array(name: str, values: ArrayLike) -> F64:
    """A finite float64 array of any shape."""
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or an infinity")
    return array


def check_choice(k: int, size: int) -> int:
    """How many of ``size`` rows to choose."""
    k = check_count("k", k)
    if k > size:
        raise ValueError(f"k must be at most size, got {k} of {size}")
    return k


def untouched_ids(ids: I64, ranks: I64) -> I64:
    """The untouched row of each rank: rank 0 is the smallest id that is not in ``ids``.

    Before the touched row ``ids[j]`` lie ``ids[j] - j`` untouched ones, so rank r is moved past all j with
    ``ids[j] - j <= r``.
    """
    before = ids - np.arange(ids.size)
    return ranks + np.searchsorted(before, ranks, side="right")


def sample_untouched(ids: I64, size: int, *, k: int, stream: Stream) -> I64:
    """A uniformly random set of ``k`` untouched rows, in O(k) time and memory."""
    return untouched_ids(ids, distinct_integers(size - ids.size, k=k, stream=stream))


def distinct_integers(high: int, *, k: int, stream: Stream) -> I64:
    """A uniformly random set of ``k`` integers of ``range(high)``, sorted, in O(k) time and memory.

    Independent draws are accepted while they are new; a round never draws more than are still missing, so the
    set is that of the first ``k`` distinct draws, which treats all integers alike.
    """
    if 2 * k >= high:
        return np.sort(stream.permutation(high)[:k])
    chosen = np.empty(0, dtype=np.int64)
    while chosen.size < k:
        chosen = np.union1d(chosen, stream.integers(high, k - chosen.size))
    return chosen
