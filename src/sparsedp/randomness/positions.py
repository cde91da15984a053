"""Which of very many positions are hit, without visiting the others."""

from __future__ import annotations

import math
import operator

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.arrays import I64
from sparsedp.core.compiled import compiled
from sparsedp.randomness.stream import Stream, exponential_of, uniform_of

_LARGEST_SIZE = 1 << 60
_BATCH = 1 << 18
_BLOCK_CHANCE = 2.0**-6
"""A gap is drawn as whole blocks and a rest; a block is hit with about this chance or less."""


def bernoulli_positions(stream: Stream, size: int, probability: float) -> I64:
    """The sorted positions in ``range(size)`` of independent Bernoulli(``probability``) hits.

    Guarantee: the distribution of ``size`` separate coins (every gap from one hit to the next has its
    probability to a relative 2^-40, out to a tail of 2^-24, and to 2^-38 beyond), in time and memory of the
    order of the number of hits.
    Proof: the gap is geometric, P(gap > g) = (1 - p)^g, which ``floor(-E / log(1 - p)) + 1`` with E an
    exponential number obeys. E is right to a relative 2^-50; how long the gaps are that it has to tell apart
    is bounded in ``_walk``.
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
    log_miss = math.log1p(-probability)
    block = 1 << max(0, min(60, math.floor(math.log2(_BLOCK_CHANCE) - math.log2(probability))))
    chunks, last = [], -1
    while last < size:
        expected = (size - 1 - last) * probability
        # Four standard deviations more than expected: one batch nearly always passes the end.
        gaps = math.ceil(min(expected + 4.0 * math.sqrt(expected) + 8.0, _BATCH))
        words = stream.uint64(4 * gaps + gaps // 8)
        hits = np.empty(words.size // 4 + 1, dtype=np.int64)
        count, last = _walk(words, last, size, block, log_miss, hits)
        chunks.append(hits[:count])
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


@compiled
def _walk(
    words: NDArray[np.uint64], last: int, size: int, block: int, log_miss: float, hits: I64
) -> tuple[int, int]:
    """Find the hits after ``last`` for which the words suffice.

    Return how many there are and the last of them, ``size`` or more at the end.

    A 53-bit uniform cannot tell all gaps apart once they are long. A geometric number is memoryless, so with
    blocks of any fixed length the number of whole blocks passed and the rest within the last one are
    independent: the first has the parameter of a block, the second has P(rest) proportional to (1 - p)^rest
    and is drawn by rejection. A gap for which words are missing is given up: how often a rest is rejected
    says nothing of what is accepted.
    """
    count = at = 0
    rest_bits = np.uint64(block - 1)
    while last < size and at + 4 <= words.size:
        passed = -exponential_of(words[at], words[at + 1]) / (block * log_miss)
        gap = np.int64(min(passed, np.float64(size // block + 1))) * block + 1
        at += 2
        while at + 2 <= words.size:
            rest = np.int64(words[at] & rest_bits)
            accepted = np.log(uniform_of(words[at + 1])) <= rest * log_miss
            at += 2
            if accepted:
                last = int(last + gap + rest)
                if last < size:
                    hits[count] = last
                    count += 1
                break
    return count, last
