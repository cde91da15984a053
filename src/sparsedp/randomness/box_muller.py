"""Single-precision standard normals in bulk: Box-Muller on a keystream.

Neither numpy nor torch computes a sine and a cosine together, and torch's logarithm starts threads of its
own, so the transform is a loop of ours, block by block in the processor's cache.
"""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from sparsedp.compiled import compiled
from sparsedp.randomness.keystream import Keystream

Floats = NDArray[np.float32]
Words = NDArray[np.int32]
Series = tuple[np.float32, ...]

BLOCK_PAIRS = 1 << 16
"""Pairs transformed at once. Part of the sequence's definition: changing it changes what a seed gives."""

_PAIR_BYTES = 8
_BLOCKS_PER_THREAD = 64
"""With less to do than this, a second thread saves nothing (seen: 1.4M numbers, 4.3 ms with one, 3.8 with two)."""

_UNIT = np.float32(2.0**-31)
_FINE_BELOW = np.int32(1 << 12)
"""Radius magnitudes below this (one pair in 2^19) are refined with 64 further bits."""
_LN_2 = np.float32(math.log(2.0))
_ROOT_HALF = np.int32(0x3F3504F3)
"""The bits of sqrt(1/2) in float32."""


def _series(*coefficients: float) -> Series:
    return tuple(np.float32(each) for each in coefficients)


# Minimax polynomials, off by less than 2e-7 in float32: cos(u pi/2) and sin(u pi/2) / u in powers of u^2, u in
# [-1, 1], and ln(1 + t) / t in powers of t, 1 + t between the roots of 1/2 and 2.
_COSINE = _series(
    0.9999999534971694, -1.233698214595596, 0.2536507436149826, -0.020810625236757266, 8.581892136138808e-4
)
_SINE = _series(
    1.5707962897560286, -0.6459633576519669, 0.07968847432845853, -0.004672220920600463, 1.508178052374299e-4
)
_LOGARITHM = _series(
    0.9999999750456773,
    -0.499999777407749,
    0.33334160454136225,
    -0.25002946143618066,
    0.19958417185175603,
    -0.16543737117859836,
    0.14917375929547133,
    -0.14482190893586816,
    0.08959922977540039,
)


def fill_normals(out: Floats, keystream: Keystream, threads: int, std: float = 1.0) -> None:
    """Fill a flat contiguous array with normals of mean zero and standard deviation ``std``.

    Guarantee: the values are a function of the keystream's state, of ``out.size`` and of ``std`` alone, not of
    the number of threads; 8 bytes of keystream are used for every two values.
    """
    values = 2 * BLOCK_PAIRS
    blocks = -(-out.size // values)
    threads = max(1, min(threads, blocks // _BLOCKS_PER_THREAD))
    if threads == 1:
        _fill_span(out, keystream, std)
        return
    span = -(-blocks // threads) * values
    parts = [out[begin : begin + span] for begin in range(0, out.size, span)]
    readers = [keystream.reserve(_pairs(part.size) * _PAIR_BYTES) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_fill_span, parts, readers, [std] * len(parts)))


def _fill_span(out: Floats, keystream: Keystream, std: float) -> None:
    values = 2 * BLOCK_PAIRS
    words = np.empty(min(values, 2 * _pairs(out.size)), dtype="<i4")
    for begin in range(0, out.size - 1, values):
        block = out[begin : begin + values]
        pairs = block.size // 2
        _transform(block[: 2 * pairs], keystream, words[: 2 * pairs], std)
    if out.size % 2:
        last = np.empty(2, dtype=np.float32)
        _transform(last, keystream, words[:2], std)
        out[-1] = last[0]


def _transform(block: Floats, keystream: Keystream, words: Words, std: float) -> None:
    """Turn the next bytes of the keystream into normals: first the radius words, then the angle words.

    A radius word is a random sign and a magnitude m of 31 bits: U = m / 2^31, r = sqrt(-2 ln U). An angle
    word is u = word / 2^31 in [-1, 1): the angle u pi/2. The half circle and the sign make the circle.
    """
    start = keystream.fill(words.data)
    native = words if sys.byteorder == "little" else words.astype(np.int32)
    log_square = block[: block.size // 2]
    if _log_squares(native, log_square):
        _refine(log_square, native[: log_square.size], keystream, start)
    _turn(native, np.float32(std), block)


@compiled
def _log_squares(words: Words, out: Floats) -> np.int32:
    """ln U^2 of each radius word; how many are to be refined.

    Every integer is cut back to 32 bits, so that eight of them fit a register.
    """
    to_refine = np.int32(0)
    for i in range(out.size):
        to_refine = np.int32(
            to_refine + (np.int32(words[i] ^ np.int32(words[i] >> np.int32(31))) < _FINE_BELOW)
        )
        unit = np.float32(words[i]) * _UNIT
        # U^2 = 2^exponent * (1 + t) with 1 + t between the roots of 1/2 and 2
        bits = np.int32(np.float32(unit * unit).view(np.int32) - _ROOT_HALF)
        exponent = np.float32(np.int32(bits >> np.int32(23)))
        fraction = np.int32(np.int32(bits & np.int32(0x7FFFFF)) + _ROOT_HALF)
        t = fraction.view(np.float32) - np.float32(1.0)
        out[i] = exponent * _LN_2 + t * _polynomial(_LOGARITHM, t)
    return to_refine


def _refine(log_square: Floats, words: Words, keystream: Keystream, start: int) -> None:
    """Give the smallest magnitudes 64 more bits, so that the tail is fine and ends at 11.5.

    The bits come from a keystream of their own, at a place given by the word's, so that a call always uses
    the same number of bytes.
    """
    magnitudes = words ^ (words >> 31)
    for i in np.flatnonzero(magnitudes < _FINE_BELOW):
        further = keystream.aside("radius", 2 * (start + 4 * int(i)), 8)
        magnitude = int(magnitudes[i]) + (int.from_bytes(further, "little") + 0.5) * 2.0**-64
        log_square[i] = 2.0 * math.log(magnitude * 2.0**-31)


@compiled
def _turn(words: Words, std: np.float32, block: Floats) -> None:
    """``std`` times (r cos, r sin), where the first half of the block holds ln U^2, in its place.

    The angle is that of the angle word, the sign that of the radius word.
    """
    pairs = block.size // 2
    first, second = block[:pairs], block[pairs:]
    for i in range(pairs):
        radius = np.sqrt(-first[i]) * std
        if words[i] < 0:
            radius = -radius
        u = np.float32(words[pairs + i]) * _UNIT
        u2 = u * u
        first[i] = _polynomial(_COSINE, u2) * radius
        second[i] = _polynomial(_SINE, u2) * (u * radius)


@compiled
def _polynomial(coefficients: Series, x: np.float32) -> np.float32:
    """Horner's rule."""
    value = coefficients[-1]
    for place in range(len(coefficients) - 2, -1, -1):
        value = value * x + coefficients[place]
    return value


def _pairs(size: int) -> int:
    return (size + 1) // 2
