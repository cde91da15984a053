"""Alias tables whose probabilities are whole numbers of parts: nothing in them is rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WIDE_BITS = 128


def alias_columns(
    weights: NDArray[np.int64], threshold_bits: int
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """A threshold for each weight's column, and for each column two outcomes, itself and its alias.

    A uniform column and a uniform number of ``threshold_bits`` bits give the first outcome if the number is
    below the threshold, the second otherwise: outcome i has exactly the probability ``weights[i] / sum``.
    The weights must add up to ``len(weights) << threshold_bits``.
    """
    thresholds, aliases = _vose(weights.tolist(), 1 << threshold_bits)
    outcomes = [each for pair in enumerate(aliases) for each in pair]
    return np.array(thresholds, dtype=np.uint16), np.array(outcomes, dtype=np.uint16)


def wide_alias_columns(
    weights: NDArray[np.float64], column_bits: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """The same for 2^``column_bits`` columns and thresholds of 128 bits: high words, low words, aliases.

    Guarantee: each probability is ``weights[i] / sum`` up to 2^-(column_bits + 127).
    """
    columns = 1 << column_bits
    exact = [int(math.ldexp(weight, 300)) for weight in weights.tolist()]
    total, parts = sum(exact), columns << _WIDE_BITS
    whole_parts = [each * parts // total for each in exact]
    whole_parts[max(range(len(whole_parts)), key=whole_parts.__getitem__)] += parts - sum(whole_parts)
    thresholds, aliases = _vose([*whole_parts, *[0] * (columns - len(whole_parts))], 1 << _WIDE_BITS)
    # A full column is its own alias, so its threshold may be the largest number of 128 bits.
    limited = [min(t, (1 << _WIDE_BITS) - 1) for t in thresholds]
    return (
        np.array([t >> 64 for t in limited], dtype=np.uint64),
        np.array([t & (2**64 - 1) for t in limited], dtype=np.uint64),
        np.array(aliases, dtype=np.int64),
    )


def _vose(weights: Sequence[int], capacity: int) -> tuple[list[int], list[int]]:
    """Thresholds and aliases (Vose 1991), in integers."""
    if sum(weights) != capacity * len(weights):
        raise ValueError("weights: must add up to the capacity of all columns")
    left = list(weights)
    thresholds, aliases = [capacity] * len(left), list(range(len(left)))
    small = [i for i, w in enumerate(left) if w < capacity]
    large = [i for i, w in enumerate(left) if w > capacity]
    while small:
        i, j = small.pop(), large[-1]
        thresholds[i], aliases[i] = left[i], j
        left[j] -= capacity - left[i]
        if left[j] <= capacity:
            large.pop()
            if left[j] < capacity:
                small.append(j)
    return thresholds, aliases
