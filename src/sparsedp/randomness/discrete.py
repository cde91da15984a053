"""Exact discrete Gaussian and discrete Laplace noise (Canonne, Kamath and Steinke 2020).

Every decision compares random bits with a rational number in integer arithmetic. Nothing is rounded, so the
distributions are exactly the stated ones. How many bits are used depends on what is drawn: the running time
is not constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sparsedp.randomness.stream import Size, Stream, shape_of

Integers = NDArray[np.int64]
Bits = NDArray[np.bool_]

_WORD = 1 << 64
_LARGEST = 1 << 40
"""The largest scale: draws then stay far inside 64 bits."""
_LARGEST_NUMERATOR = 1 << 63


def discrete_laplace(stream: Stream, scale: Fraction | float, size: Size) -> Integers:
    """Integers with P(x) proportional to exp(-|x| / scale). A float scale is taken as the rational it is.

    Guarantee: added to an integer query of l1 sensitivity D this is (D / scale, 0)-DP.
    """
    ratio = _rational("scale", scale, _LARGEST)
    return _until_full(size, lambda count: _laplace_trials(stream, ratio, count))


def discrete_gaussian(stream: Stream, sigma2: Fraction | float, size: Size) -> Integers:
    """Integers with P(x) proportional to exp(-x^2 / (2 sigma2)). A float is taken as the rational it is.

    Guarantee: added to an integer query of l2 sensitivity D this is D^2 / (2 sigma2)-zCDP, and its variance
    is at most sigma2 (Theorem 4 and Corollary 9 there).
    """
    ratio = _rational("sigma2", sigma2, _LARGEST**2)
    return _until_full(size, lambda count: _gaussian_trials(stream, ratio, count))


def _gaussian_trials(stream: Stream, sigma2: Fraction, count: int) -> Integers:
    """Algorithm 3: of ``count`` discrete Laplace candidates, those accepted."""
    t = math.isqrt(math.floor(sigma2)) + 1
    y = _laplace_trials(stream, Fraction(t), count)
    magnitudes, which = np.unique(np.abs(y), return_inverse=True)
    a, b = sigma2.numerator, sigma2.denominator
    # (|y| - sigma2 / t)^2 / (2 sigma2), brought to one denominator
    gammas = [(m * b * t - a) ** 2 for m in magnitudes.tolist()]
    return y[_exponential_coins(stream, gammas, 2 * a * b * t * t, which)]


def _laplace_trials(stream: Stream, scale: Fraction, count: int) -> Integers:
    """Algorithm 2 with scale = t / s: of ``count`` candidates, those accepted."""
    t, s = scale.numerator, scale.denominator
    values, which = np.unique(stream.integers(t, count), return_inverse=True)
    gammas = values.tolist()
    accepted = _exponential_coins(stream, gammas, t, which)
    which = which[accepted]
    v = _geometric(stream, which.size)
    x = [(gammas[i] + t * k) // s for i, k in zip(which.tolist(), v.tolist(), strict=True)]
    y = np.array(x, dtype=np.int64)
    negative = _fair_coins(stream, y.size)
    y[negative] *= -1
    kept: Integers = y[~(negative & (y == 0))]  # zero would otherwise come up twice, as +0 and as -0
    return kept


def _geometric(stream: Stream, count: int) -> Integers:
    """How often a coin of probability exp(-1) comes up before it first does not."""
    runs = np.zeros(count, dtype=np.int64)
    alive = np.arange(count)
    while alive.size:
        alive = alive[_exponential_coins(stream, [1], 1, np.zeros(alive.size, dtype=np.intp))]
        runs[alive] += 1
    return runs


def _exponential_coins(
    stream: Stream, gammas: Sequence[int], denominator: int, which: NDArray[np.intp]
) -> Bits:
    """Algorithm 1: coin i comes up with probability exp(-gammas[which[i]] / denominator)."""
    wholes, rests = np.array([divmod(g, denominator) for g in gammas], dtype=object).reshape(-1, 2).T
    up = _short_exponential_coins(stream, rests.tolist(), denominator, which)
    # exp(-whole) by as many coins of exp(-1): no run of them ever gets near 2^40
    left = np.minimum(wholes, _LARGEST).astype(np.int64)[which]
    while (due := np.flatnonzero(up & (left > 0))).size:
        up[due] = _short_exponential_coins(stream, [1], 1, np.zeros(due.size, dtype=np.intp))
        left[due] -= 1
    return up


def _short_exponential_coins(
    stream: Stream, gammas: Sequence[int], denominator: int, which: NDArray[np.intp]
) -> Bits:
    """Algorithm 1 for gamma <= 1: the first K at which a coin of gamma / K fails is odd w. p. exp(-gamma)."""
    odd = np.zeros(which.size, dtype=np.bool_)
    alive, k = np.arange(which.size), 1
    while alive.size:
        up = _coins(stream, gammas, denominator * k, which[alive])
        odd[alive[~up]] = k % 2 == 1
        alive, k = alive[up], k + 1
    return odd


def _coins(stream: Stream, numerators: Sequence[int], denominator: int, which: NDArray[np.intp]) -> Bits:
    """Coin i comes up with probability numerators[which[i]] / denominator, exactly.

    A uniform word is compared with the first 64 bits of the probability; only if they agree (2^-64) is
    there a need for the rest of its bits.
    """
    scaled = [
        divmod(n << 64, denominator) if n < denominator else (_WORD - 1, denominator) for n in numerators
    ]
    thresholds = np.array([first for first, _ in scaled], dtype=np.uint64)[which]
    words = stream.uint64(which.size)
    up = words < thresholds
    for i in np.flatnonzero(words == thresholds):
        up[i] = _coins(stream, [scaled[which[i]][1]], denominator, np.zeros(1, dtype=np.intp))[0]
    return up


def _fair_coins(stream: Stream, count: int) -> Bits:
    return (np.frombuffer(stream.bytes(count), dtype=np.uint8) & 1).astype(np.bool_)


def _until_full(size: Size, trials: Callable[[int], Integers]) -> Integers:
    """Trials until there are enough; the accepted ones are independent and each has the wanted law."""
    shape = shape_of(size)
    missing = math.prod(shape)
    found = [np.empty(0, dtype=np.int64)]
    while missing > 0:
        accepted = trials(missing + missing // 2 + 8)[:missing]
        found.append(accepted)
        missing -= accepted.size
    return np.concatenate(found).reshape(shape)


def _rational(argument: str, value: Fraction | float, largest: int) -> Fraction:
    if not (math.isfinite(value) and 0 < value <= largest):
        raise ValueError(f"{argument}: must lie in (0, 2^{largest.bit_length() - 1}], got {value}")
    ratio = Fraction(value)
    if ratio.numerator > _LARGEST_NUMERATOR:
        raise ValueError(f"{argument}: its numerator has more than 63 bits; see Fraction.limit_denominator")
    return ratio
