"""The walk over hits against a slow one in Python, on the same words: equal, position by position."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparsedp.randomness import NoiseSource, bernoulli_positions
from sparsedp.randomness.stream import exponential_of, uniform_of


def slow_positions(seed: int, size: int, probability: float) -> list[int]:
    """Geometric gaps as whole blocks and a rest, as ``bernoulli_positions`` says."""
    stream = NoiseSource(seed).sampling
    log_miss = math.log1p(-probability)
    block = 1
    while block < 1 << 60 and 2 * block * probability <= 2.0**-6:
        block *= 2
    found: list[int] = []
    last = -1
    while last < size:
        expected = (size - 1 - last) * probability
        gaps = math.ceil(min(expected + 4.0 * math.sqrt(expected) + 8.0, 1 << 18))
        words = list(stream.uint64(4 * gaps + gaps // 8))
        while last < size and len(words) >= 4:
            whole = -exponential_of(words[0], words[1]) / (block * log_miss)
            gap = int(min(whole, size // block + 1)) * block + 1
            words = words[2:]
            while len(words) >= 2:
                rest, coin = int(words[0]) % block, uniform_of(words[1])
                words = words[2:]
                if math.log(coin) <= rest * log_miss:  # with probability (1 - p)^rest
                    last += gap + rest
                    if last < size:
                        found.append(last)
                    break
    return found


@pytest.mark.parametrize(
    ("size", "probability"),
    [
        (50, 0.5),
        (50, 0.99),
        (300, 0.1),
        (2000, 0.01),
        (20_000, 1e-3),
        (10**6, 2.0**-12),
        (10**9, 1e-7),
        (7, 1e-9),
    ],
)
def test_the_walk_is_that_of_the_reference(size: int, probability: float) -> None:
    for seed in range(4):
        found = bernoulli_positions(NoiseSource(seed).sampling, size, probability)
        assert found.tolist() == slow_positions(seed, size, probability)
        assert found.dtype == np.int64


@pytest.mark.parametrize(
    ("size", "probability", "expected"),
    [(0, 0.5, []), (5, 0.0, []), (5, 1.0, [0, 1, 2, 3, 4]), (0, 1.0, [])],
)
def test_sure_things(size: int, probability: float, expected: list[int]) -> None:
    assert bernoulli_positions(NoiseSource(0).sampling, size, probability).tolist() == expected


@pytest.mark.parametrize(
    ("size", "probability", "named"),
    [
        (-1, 0.5, "size"),
        ((1 << 60) + 1, 0.5, "size"),
        (5, -1e-9, "probability"),
        (5, 1.0000001, "probability"),
        (5, math.nan, "probability"),
    ],
)
def test_what_cannot_be_is_refused(size: int, probability: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        bernoulli_positions(NoiseSource(0).sampling, size, probability)
