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

BLOCK_PAIRS = 1 << 16
"""Pairs transformed at once. Part of the sequence's definition: changing it changes what a seed gives."""

_PAIR_BYTES = 8
_BLOCKS_PER_THREAD = 64
"""With less to do than this, a second thread costs more than it saves (seen: 1.4M numbers, 5.9 ms with one
thread, 8 to 12 ms with two)."""

_UNIT = np.float32(2.0**-31)
_FINE_BELOW = 1 << 12
"""Radius magnitudes below this (one pair in 2^19) are refined with 64 further bits."""
_FINE_BELOW_SQUARED = np.float32((_FINE_BELOW * 2.0**-31) ** 2)

# cos(u pi/2) and sin(u pi/2) / u on [-1, 1] as polynomials in u^2: minimax, off by less than 2e-7 in float32.
_COSINE = tuple(
    np.float32(c)
    for c in (
        0.9999999534971694,
        -1.233698214595596,
        0.2536507436149826,
        -0.020810625236757266,
        0.0008581892136138808,
    )
)
_SINE = tuple(
    np.float32(c)
    for c in (
        1.5707962897560286,
        -0.6459633576519669,
        0.07968847432845853,
        -0.004672220920600463,
        0.0001508178052374299,
    )
)


def fill_normals(out: Floats, keystream: Keystream, threads: int) -> None:
    """Fill a flat contiguous array with standard normals.

    Guarantee: the values are a function of the keystream's state and of ``out.size`` alone, not of the
    number of threads; 8 bytes of keystream are used for every two values.
    """
    values = 2 * BLOCK_PAIRS
    blocks = -(-out.size // values)
    threads = max(1, min(threads, blocks // _BLOCKS_PER_THREAD))
    if threads == 1:
        _fill_span(out, keystream)
        return
    span = -(-blocks // threads) * values
    parts = [out[begin : begin + span] for begin in range(0, out.size, span)]
    readers = [keystream.reserve(_pairs(part.size) * _PAIR_BYTES) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_fill_span, parts, readers))


def _fill_span(out: Floats, keystream: Keystream) -> None:
    values = 2 * BLOCK_PAIRS
    words = np.empty(min(values, 2 * _pairs(out.size)), dtype="<i4")
    radius = np.empty(words.size // 2, dtype=np.float32)
    for begin in range(0, out.size - 1, values):
        block = out[begin : begin + values]
        pairs = block.size // 2
        _transform(block[: 2 * pairs], keystream, words[: 2 * pairs], radius[:pairs])
    if out.size % 2:
        last = np.empty(2, dtype=np.float32)
        _transform(last, keystream, words[:2], radius[:1])
        out[-1] = last[0]


def _transform(block: Floats, keystream: Keystream, words: Words, radius: Floats) -> None:
    """Turn the next bytes of the keystream into normals: first the radius words, then the angle words.

    A radius word is a random sign and a magnitude m of 31 bits: U = m / 2^31, r = sqrt(-2 ln U). An angle
    word is u = word / 2^31 in [-1, 1): the angle u pi/2. The half circle and the sign make the circle.
    """
    start = keystream.fill(words.data)
    native = words if sys.byteorder == "little" else words.astype(np.int32)
    _squares(native, radius)
    _log_square(radius, native[: radius.size], keystream, start)
    _turn(native, radius, block)


@compiled
def _squares(words: Words, square: Floats) -> None:
    """U^2 of each radius word."""
    for i in range(square.size):
        unit = np.float32(words[i]) * _UNIT
        square[i] = unit * unit


def _log_square(square: Floats, words: Words, keystream: Keystream, start: int) -> None:
    """ln U^2 in place of U^2. Small magnitudes get 64 more bits, so that the tail is fine and ends at 11.5.

    The bits come from a keystream of their own, at a place given by the word's, so that a call always uses
    the same number of bytes.
    """
    fine = np.flatnonzero(square < _FINE_BELOW_SQUARED) if square.min() < _FINE_BELOW_SQUARED else ()
    exact = []
    for i in fine:
        word = int(words[i])
        further = keystream.aside("radius", 2 * (start + 4 * int(i)), 8)
        magnitude = (word if word >= 0 else ~word) + (int.from_bytes(further, "little") + 0.5) * 2.0**-64
        exact.append(2.0 * math.log(magnitude * 2.0**-31))
        square[i] = 1.0
    np.log(square, out=square)
    for i, value in zip(fine, exact, strict=True):
        square[i] = value


@compiled
def _turn(words: Words, log_square: Floats, out: Floats) -> None:
    """(r cos, r sin) from ln U^2 and the angle word, with the sign of the radius word."""
    pairs = log_square.size
    for i in range(pairs):
        radius = np.sqrt(-log_square[i])
        if words[i] < 0:
            radius = -radius
        u = np.float32(words[pairs + i]) * _UNIT
        u2 = u * u
        out[i] = _polynomial(_COSINE, u2) * radius
        out[pairs + i] = _polynomial(_SINE, u2) * (u * radius)


@compiled
def _polynomial(coefficients: tuple[np.float32, ...], x: np.float32) -> np.float32:
    """Horner's rule."""
    c0, c1, c2, c3, c4 = coefficients
    return (((c4 * x + c3) * x + c2) * x + c1) * x + c0


def _pairs(size: int) -> int:
    return (size + 1) // 2
