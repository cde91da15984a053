"""Which of very many positions are hit, without visiting the others."""

from __future__ import annotations

import math
import operator

import numpy as np
from numpy.typing import NDArray

from sparsedp.randomness.stream import Stream

Integers = NDArray[np.int64]

_LARGEST_SIZE = 1 << 60
_BATCH = 1 << 20
_BLOCK_CHANCE = 2.0**-6
"""A gap is drawn as whole blocks and a rest; a block is hit with about this chance or less."""
_SHORT_BLOCK = 1 << 20
"""Up to this length a 64-bit word has bits for a rest and 44 more to accept it by."""


def bernoulli_positions(stream: Stream, size: int, probability: float) -> Integers:
    """The sorted positions in ``range(size)`` of independent Bernoulli(``probability``) hits.

    Guarantee: the distribution of ``size`` separate coins (within 2^-40 in total variation for each hit), in
    time and memory of the order of the number of hits.
    Proof: the gap from one hit to the next is geometric, P(gap > g) = (1 - p)^g, which
    ``floor(log U / log(1 - p)) + 1`` with U uniform obeys.
    """
    size, probability = operator.index(size), float(probability)
    if not 0 <= size <= _LARGEST_SIZE:
        raise ValueError(f"size: must lie in 0 .. 2^60, got {size}")
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"probability: must lie in [0, 1], got {probability}")
    if probability == 0.0 or size == 0:
        return np.empty(0, dtype=np.int64)
    if probability == 1.0:
        return np.arange(size, dtype=np.int64)
    found, last = [], -1
    while last < size:
        expected = (size - 1 - last) * probability
        # Four standard deviations more than expected: one batch nearly always passes the end.
        batch = math.ceil(min(expected + 4.0 * math.sqrt(expected) + 8.0, _BATCH))
        hits = last + _running_sum(np.minimum(_gaps(stream, size, probability, batch), size + 1))
        found.append(hits[: np.searchsorted(hits, size)])
        last = int(hits[-1])
    return np.concatenate(found)


def _gaps(stream: Stream, size: int, probability: float, count: int) -> Integers:
    """Geometric gaps; those that reach beyond ``size`` need only do so.

    A 53-bit uniform cannot tell all gaps apart once they are long. A geometric number is memoryless, so with
    blocks of any fixed length the number of whole blocks passed and the rest within the last one are
    independent: the first has the parameter of a block, the second has P(rest) proportional to (1 - p)^rest.
    """
    log_miss = math.log1p(-probability)
    block = 1 << max(0, min(60, math.floor(math.log2(_BLOCK_CHANCE) - math.log2(probability))))
    passed = np.log(stream.uniform(count))
    passed /= block * log_miss
    whole = np.minimum(passed, size // block + 1).astype(np.int64)
    return whole * block + _rests(stream, block, log_miss, count) + 1


def _rests(stream: Stream, block: int, log_miss: float, count: int) -> Integers:
    """Numbers in ``range(block)`` with P(rest) proportional to exp(rest * log_miss), by rejection."""
    rests = np.zeros(count, dtype=np.int64)
    if block == 1:
        return rests
    if block <= _SHORT_BLOCK:
        return _short_rests(stream, block, log_miss, count)
    open_ = np.arange(count)
    while open_.size:
        rests[open_] = stream.integers(block, open_.size)
        open_ = open_[np.log(stream.uniform(open_.size)) > rests[open_] * log_miss]
    return rests


def _short_rests(stream: Stream, block: int, log_miss: float, count: int) -> Integers:
    """The same for short blocks, a power of two each: one word holds the candidate and its acceptance."""
    bits = np.uint64(block.bit_length() - 1)
    accepted: list[Integers] = []
    missing = count
    while missing > 0:
        words = stream.uint64(missing + missing // 32 + 4)
        candidates = (words & np.uint64(block - 1)).astype(np.int64)
        kept = candidates[(words >> bits) <= np.exp(candidates * log_miss) * 2.0 ** (64 - int(bits))]
        accepted.append(kept[:missing])
        missing -= kept.size
    return accepted[0] if len(accepted) == 1 else np.concatenate(accepted)


def _running_sum(steps: Integers) -> Integers:
    """The running sum, ended before it can leave int64, which is beyond any size."""
    inside = int(np.searchsorted(np.cumsum(steps, dtype=np.float64), 2.0**62)) + 1
    return np.cumsum(steps[:inside])
