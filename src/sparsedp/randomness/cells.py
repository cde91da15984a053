"""Integers of a given law, one random word for nearly each: the samplers below all noise.

The half lines k >= 0 and k < 0 are cut into cells of 2^b integers, narrow against the scale of the law. Below the
probabilities of a cell lies a rectangle of height n_j 2^-(25 + b), n_j whole. One word gives a sign, a cell and a
uniform place in it: an alias table of whole numbers gives cell j the probability n_j / 2^24, exactly, and nothing
else has to be decided. With the rest of the probability, less than 1/100, a second look at fresh words draws from
what the rectangles leave: a cell by an alias table of 140 bits, a uniform place, accepted with the probability
(height - rectangle) / (its largest value in the cell), computed in float64.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sparsedp.core.arrays import F64, I64, U16, U64
from sparsedp.core.compiled import compiled
from sparsedp.randomness.alias import alias_columns, wide_alias_columns
from sparsedp.randomness.keystream import Keystream

if TYPE_CHECKING:
    from sparsedp.randomness.stream import Stream


SMALLEST_STD = 2.0**22
LARGEST_STD = 2.0**46
GAUSSIAN_REACH = 11.5
"""How many standard deviations the noise reaches; what lies beyond has a mass of 2^-99."""
GEOMETRIC_REACH = 64.0
"""The same for a geometric law, in its scale: a mass of 2^-92."""

CHUNK = 1 << 16
"""Draws made at once, in the cache. Part of the sequence's definition: changing it changes what a seed gives."""
SPAN = 1 << 18
"""What one thread draws at a time. Part of the definition as well."""
ONE_THREAD = 1 << 22
"""Up to this many draws one thread is faster: after a matrix product torch's threads hold their cores for a while."""

# A word, from below: 11 bits of column, up to 39 for the position in a cell, 13 to compare with a threshold, the sign.
_COLUMN_BITS, _THRESHOLD_BITS = 11, 13
_CELL_BITS = _COLUMN_BITS + _THRESHOLD_BITS
_SECOND_LOOK = (1 << _COLUMN_BITS) - 1
"""The cell that marks a second draw."""

_WIDE_COLUMN_BITS = 12
_WORDS_A_LOOK = 4
_ASIDE_BITS = 40
"""Each byte of the keystream has 2^40 bytes of its own beside it."""


class CellSampler:
    """Integers k with the probabilities of a bell, or of a peak that falls off evenly to both sides.

    The bell is ``mass exp(-x^2 / 2) (1 + (x^2 - 1) / (24 scale^2))`` with x = k / scale: the integral of a
    density over k +- 1/2, to a relative x^4 / scale^4 / 1000. The peak is ``mass exp(-k / scale)`` for k >= 0
    and the same again for -1 - k: a sign and a geometric number.
    """

    def __init__(self, scale: float, cell_bits: int, *, bell: bool, reach: float, mass: float) -> None:
        self.scale, self.cell_bits, self.bell = scale, cell_bits, bell
        width = math.ldexp(1.0, cell_bits) / scale
        edges = width * np.arange(math.ceil(reach / width) + 1)
        self.peak = math.ldexp(mass, _CELL_BITS + 1 + cell_bits)
        """``mass`` as a height in units of 2^-(25 + cell_bits)."""
        self.curvature = 1.0 / (24.0 * scale**2)
        heights = self.peak * (
            np.exp(-0.5 * edges**2) * (1.0 + self.curvature * (edges**2 - 1.0)) if bell else np.exp(-edges)
        )
        self.tops: F64 = heights[:-1]
        self.rectangles: F64 = np.floor(heights[1:] * (1.0 - 2.0**-45))
        weights = np.zeros(1 << _COLUMN_BITS, dtype=np.int64)
        inner = np.flatnonzero(self.rectangles)
        weights[inner] = self.rectangles[inner]
        weights[_SECOND_LOOK] = (1 << _CELL_BITS) - weights.sum()
        self.second_looks = float(weights[_SECOND_LOOK]) * 2.0**-_CELL_BITS
        self.thresholds, self.cells = alias_columns(weights, _THRESHOLD_BITS)
        self.wide_columns = wide_alias_columns(self.tops - self.rectangles, _WIDE_COLUMN_BITS)

    def fill(self, out: I64, stream: Stream, threads: int = 1) -> None:
        """Fill a flat contiguous array.

        Guarantee: the values, and how far the stream moves, are functions of the stream's state and of
        ``out.size``, not of the number of threads.
        """
        if out.size <= CHUNK:
            self.fill_chunk(out, stream.keystream)
            return

        def draw(begin: int, end: int, keystream: Keystream) -> None:
            for at in range(begin, end, CHUNK):
                self.fill_chunk(out[at : min(at + CHUNK, end)], keystream)

        self.over_spans(out.size, draw, stream.keystream, threads)

    def over_spans(
        self, size: int, draw: Callable[[int, int, Keystream], None], keystream: Keystream, threads: int
    ) -> None:
        """``draw(begin, end, keystream)`` for each span of ``range(size)``, by at most so many threads."""
        spans = [(begin, min(begin + SPAN, size)) for begin in range(0, size, SPAN)]
        if threads <= 1 or size <= ONE_THREAD:
            for begin, end in spans:
                draw(begin, end, keystream)
            return
        readers = [keystream.reserve(self.words_of(end - begin) * 8) for begin, end in spans]
        with ThreadPoolExecutor(min(threads, len(spans))) as pool:
            list(pool.map(draw, *zip(*spans, strict=True), readers))

    def words_of(self, size: int) -> int:
        """How many words of a keystream ``size`` draws in one span use."""
        whole, rest = divmod(size, CHUNK)
        chunks = whole * (CHUNK + self._spare(CHUNK))
        return chunks + (rest + self._spare(rest) if rest else 0)

    def fill_chunk(self, out: I64, keystream: Keystream) -> None:
        """The next draws, at most ``CHUNK`` of them.

        A word for each; then spare words for second looks, always as many; should they not suffice, more from a
        separate key, at a position given by that of the first word.
        """
        if not out.size:
            return
        start = _fill(keystream, out)
        words = np.empty(self._spare(out.size), dtype=np.uint64)
        _fill(keystream, words)
        again = np.empty(out.size, dtype=np.int64)
        pending = again[: _first_look(out, self.thresholds, self.cells, self.cell_bits, again)]
        pending = pending[self._second_look(pending, words, out) :]
        if pending.size:
            aside = keystream.branch("second looks", start << _ASIDE_BITS)
            while pending.size:
                _fill(aside, words)
                pending = pending[self._second_look(pending, words, out) :]

    def _second_look(self, pending: I64, words: U64, out: I64) -> int:
        return _second_look(
            pending,
            words,
            *self.wide_columns,
            self.tops,
            self.rectangles,
            self.cell_bits,
            self.peak,
            1.0 / self.scale,
            self.curvature,
            self.bell,
            out,
        )

    def _spare(self, size: int) -> int:
        """Half as much again as second looks need on average, and a few."""
        return int(1.5 * 2 * _WORDS_A_LOOK * self.second_looks * size) + 16 * _WORDS_A_LOOK


class RoundedGaussian(CellSampler):
    """Integers Z with P(Z = k) = Phi((k + 1/2) / s) - Phi((k - 1/2) / s), where s is ``std_cells``.

    Guarantee: every integer within 11.5 s of zero has its probability to a relative 2^-44; none beyond (mass
    2^-99) is ever drawn.
    Error, relative to the probability of one integer: what the bell leaves out, 2^-80 since s >= 2^22; the
    exponential and its argument in float64, 2^-46; the weights of second looks, 2^-45; a uniform of 53 bits,
    2^-53.
    """

    def __init__(self, std_cells: float) -> None:
        std = self.std_cells = float(std_cells)
        if not SMALLEST_STD <= std <= LARGEST_STD:
            raise ValueError(f"std_cells: must lie in [2^22, 2^46], got {std_cells}")
        super().__init__(
            std,
            math.frexp(std)[1] - 8,  # cells between 1/256 and 1/128 of s
            bell=True,
            reach=GAUSSIAN_REACH,
            mass=1.0 / (std * math.sqrt(2.0 * math.pi)),
        )


class TwoSidedGeometric(CellSampler):
    """Integers k with P(k) = P(-1 - k) = (1 - q) q^k / 2 for k >= 0, where q = exp(-2^-``scale_bits``).

    Guarantee: every k within 64 of its scale has its probability to a relative 2^-44; none beyond (mass
    2^-92) is ever drawn. Error: float64's exponential, 2^-51; the weights of second looks, 2^-48.
    """

    def __init__(self, scale_bits: int) -> None:
        scale = 2.0**scale_bits
        super().__init__(
            scale,
            scale_bits - 6,
            bell=False,
            reach=GEOMETRIC_REACH,
            mass=-0.5 * math.expm1(-1.0 / scale),
        )


@lru_cache(maxsize=64)
def rounded_gaussian(std_cells: float) -> RoundedGaussian:
    """The sampler of this standard deviation, its tables made once."""
    return RoundedGaussian(std_cells)


@lru_cache(maxsize=4)
def two_sided_geometric(scale_bits: int) -> TwoSidedGeometric:
    """The sampler of this scale, its tables made once."""
    return TwoSidedGeometric(scale_bits)


def _fill(keystream: Keystream, words: I64 | U64) -> int:
    """The next words, the same on every machine, and the position of the first."""
    start = keystream.fill(words.data)
    if sys.byteorder == "big":
        words.byteswap(inplace=True)
    return start


@compiled
def _first_look(words: I64, thresholds: U16, cells: U16, cell_bits: int, again: I64) -> int:
    """Turn words into integers, in place; note where a second draw is needed, and return how often.

    A column has two cells, its own and its alias: the choice is a memory index, not a branch.
    """
    shift, count = np.int64(cell_bits), 0
    mask = (np.int64(1) << shift) - np.int64(1)
    for i in range(words.size):
        word = words[i]
        column = word & np.int64(_SECOND_LOOK)
        number = (word >> np.int64(63 - _THRESHOLD_BITS)) & np.int64((1 << _THRESHOLD_BITS) - 1)
        cell = np.int64(cells[(column << np.int64(1)) + np.int64(number >= np.int64(thresholds[column]))])
        # The sign turns k into -1 - k.
        words[i] = ((cell << shift) | ((word >> np.int64(_COLUMN_BITS)) & mask)) ^ (word >> np.int64(63))
        if cell == np.int64(_SECOND_LOOK):
            again[count] = i
            count += 1
    return count


@compiled
def height_at(
    k: np.int64, sign: np.int64, peak: float, per_scale: float, curvature: float, bell: bool
) -> float:
    """The probability of k, or of -1 - k where the sign is -1, as a height."""
    if not bell:
        return peak * math.exp(-np.float64(k) * per_scale)
    x = np.float64(k ^ sign) * per_scale
    return peak * math.exp(-0.5 * x * x) * (1.0 + curvature * (x * x - 1.0))


@compiled
def _second_look(
    pending: I64,
    words: U64,
    high: U64,
    low: U64,
    alias: I64,
    tops: F64,
    rectangles: F64,
    cell_bits: int,
    peak: float,
    per_scale: float,
    curvature: float,
    bell: bool,
    out: I64,
) -> int:
    """Draw from what the rectangles leave; return for how many the words sufficed.

    A draw for which words are missing is given up: how often it was rejected says nothing of what it becomes.
    """
    shift, at = np.int64(cell_bits), 0
    mask = (np.int64(1) << shift) - np.int64(1)
    for n in range(pending.size):
        while True:
            if at + _WORDS_A_LOOK > words.size:
                return n
            word = np.int64(words[at])
            column = word & np.int64((1 << _WIDE_COLUMN_BITS) - 1)
            first, second = words[at + 1], words[at + 2]
            accepts_column = first < high[column] or (first == high[column] and second < low[column])
            cell = column if accepts_column else alias[column]
            k = (cell << shift) | ((word >> np.int64(_WIDE_COLUMN_BITS)) & mask)
            sign = word >> np.int64(63)
            height = height_at(k, sign, peak, per_scale, curvature, bell)
            at += _WORDS_A_LOOK
            limit = np.float64(words[at - 1]) * 2.0**-64 * (tops[cell] - rectangles[cell])
            if limit < height - rectangles[cell]:
                out[pending[n]] = k ^ sign
                break
    return pending.size
