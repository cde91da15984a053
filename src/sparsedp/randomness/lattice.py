"""Gaussian noise in whole lattice cells: data are rounded to a public lattice, noise is an integer, added last.

``RoundedGaussian`` draws integers with the law of a rounded Gaussian. If k is a function of the data that one
example moves by at most D in l2, then k + Z is the Gaussian mechanism on k, rounded to integers: rounding is
post-processing, so its privacy curve is that of the Gaussian mechanism, with no gap for floating point. What
floats do afterwards to k + Z is post-processing too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sparsedp.compiled import compiled
from sparsedp.randomness.alias import alias_columns, wide_alias_columns
from sparsedp.randomness.keystream import Keystream
from sparsedp.randomness.stream import Size, Stream, shape_of

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
U16 = NDArray[np.uint16]

SMALLEST_STD = 2.0**22
LARGEST_STD = 2.0**46
REACH = 11.5
"""How many standard deviations the noise reaches; what lies beyond has a mass of 2^-99."""

CHUNK = 1 << 14
"""Draws made at once, in the cache. Part of the sequence's definition: changing it changes what a seed gives."""
SPAN = 1 << 19
"""What one thread draws at a time. Part of the definition as well."""

_LATTICE_SLACK = 2.0**-11
_UNIT_BITS = 44
_FARTHEST = 2.0**62

# A word, from below: 11 bits of column, up to 39 for the place in a cell, 13 to compare with a threshold, the sign.
_COLUMN_BITS, _THRESHOLD_BITS = 11, 13
_CELL_BITS = _COLUMN_BITS + _THRESHOLD_BITS
_SECOND_LOOK = (1 << _COLUMN_BITS) - 1
"""The cell that stands for a second look."""

_WIDE_COLUMN_BITS = 12
_WORDS_A_LOOK = 4
_ASIDE_BITS = 40
"""Each byte of the keystream has 2^40 bytes of its own beside it for second looks."""


class RoundedGaussian:
    """Integers Z with P(Z = k) = Phi((k + 1/2) / s) - Phi((k - 1/2) / s), where s is ``std_cells``.

    Guarantee: every integer within 11.5 s of zero has its probability to a relative 2^-40; none beyond (mass
    2^-99) is ever drawn. Bits are those of the stream's AES-256-CTR.

    Method: the half lines k >= 0 and k < 0 are cut into cells of 2^b integers, about 1/200 of s each. Below
    the density of each cell lies a rectangle of height n_j 2^-(25 + b), n_j whole. With one word, a sign, a
    cell and a uniform place in it: an alias table of whole numbers gives cell j the probability n_j / 2^24,
    exactly, and nothing else has to be decided. With the rest of the probability, about 1/400, a second look
    at fresh words draws from what the rectangles leave: a cell by an alias table of 140 bits, a uniform
    place, accepted with the probability (density - rectangle) / (its largest value in the cell).

    Error, relative to the probability of one integer: the density at k stands for the mean over its cell,
    (k/s)^2 / (24 s^2) < 2^-41.5 since s >= 2^22; the exponential and its argument in float64, 2^-45; weights
    of the second look, 2^-42; a uniform of 53 bits, 2^-53. ``exact_probability`` of the tests adds these up.
    """

    def __init__(self, std_cells: float) -> None:
        self.std_cells = float(std_cells)
        if not SMALLEST_STD <= self.std_cells <= LARGEST_STD:
            raise ValueError(f"std_cells: must lie in [2^22, 2^46], got {std_cells}")
        self.cell_bits = math.frexp(self.std_cells)[1] - 8
        width = math.ldexp(1.0, self.cell_bits) / self.std_cells
        cells = math.ceil(REACH / width)
        self.peak = math.ldexp(width, _CELL_BITS + 1) / math.sqrt(2.0 * math.pi)
        """The density at zero, as a height in units of 2^-(25 + cell_bits)."""
        heights = self.peak * np.exp(-0.5 * (width * np.arange(cells + 1)) ** 2)
        self.tops: F64 = heights[:-1]
        self.rectangles: F64 = np.floor(heights[1:] * (1.0 - 2.0**-45))
        weights = np.zeros(1 << _COLUMN_BITS, dtype=np.int64)
        inner = np.flatnonzero(self.rectangles)
        weights[inner] = self.rectangles[inner]
        weights[_SECOND_LOOK] = (1 << _CELL_BITS) - weights.sum()
        self.thresholds, self.cells = alias_columns(weights, _THRESHOLD_BITS)
        self.wide_columns = wide_alias_columns(self.tops - self.rectangles, _WIDE_COLUMN_BITS)

    def fill(self, out: I64, stream: Stream, threads: int = 1) -> None:
        """Fill a flat contiguous array.

        Guarantee: the values are a function of the stream's state and of ``out.size``, not of the number of
        threads; 8 bytes of the stream are used for each.
        """

        def draw(begin: int, end: int, looks: _SecondLooks) -> None:
            for at in range(begin, end, CHUNK):
                self._fill_chunk(out[at : min(at + CHUNK, end)], looks)

        _over_spans(out.size, draw, stream.keystream, threads)

    def _fill_chunk(self, out: I64, looks: _SecondLooks) -> None:
        looks.fill(out)
        again = np.empty(out.size, dtype=np.int64)
        pending = again[: _first_look(out, self.thresholds, self.cells, self.cell_bits, again)]
        while pending.size:
            words = looks.words(pending.size)
            done = _second_look(
                pending,
                words,
                *self.wide_columns,
                self.tops,
                self.rectangles,
                self.cell_bits,
                self.peak,
                1.0 / self.std_cells,
                out,
            )
            pending = pending[done:]


@lru_cache(maxsize=64)
def rounded_gaussian(std_cells: float) -> RoundedGaussian:
    """The sampler of this standard deviation, its tables made once."""
    return RoundedGaussian(std_cells)


def lattice_of(*, std: float, sensitivity: float, coordinates: int) -> float:
    """The lattice of a sum that one example moves by ``sensitivity``: a public power of two.

    Guarantee: it is at most ``2^-11 sensitivity / sqrt(coordinates)`` and at most ``std / 2^22``. Rounding
    moves each of d coordinates by at most half a cell, so the rounded sums of two neighbours are further
    apart than the sums by at most ``lattice * sqrt(d) <= 2^-11 sensitivity``: half of what clipping to
    ``(1 - 2^-10) sensitivity`` leaves.
    """
    for name, value in (("std", std), ("sensitivity", sensitivity), ("coordinates", coordinates)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}: must be positive and finite, got {value}")
    bound = min(_LATTICE_SLACK * sensitivity / math.sqrt(coordinates), std / SMALLEST_STD)
    lattice = math.ldexp(1.0, math.frexp(bound)[1] - 1)
    if not std / lattice <= LARGEST_STD:
        raise ValueError(
            f"std: at most 2^46 lattice cells, got {std} for sensitivity {sensitivity} in {coordinates} "
            "coordinates: so much noise drowns everything, ask for a larger epsilon"
        )
    if lattice < 2.0**-900:
        raise ValueError(f"sensitivity: too small for a lattice in float64, got {sensitivity}")
    return lattice


def release_on_lattice(
    out: F32,
    sums: F64 | None,
    *,
    lattice: float,
    std: float,
    divisor: float,
    stream: Stream,
    threads: int = 1,
) -> None:
    """``out = lattice * (round(sums / lattice) + Z) / divisor``, Z a rounded Gaussian of ``std / lattice`` cells.

    ``sums`` None stands for zeros. Guarantee: if the rounded sums of two neighbours are at most D apart (see
    ``lattice_of``), the event is ``Gaussian(std / D)``. Values beyond 2^62 cells are cut to that, which moves
    no two apart; NaN counts as zero. All floats after the noise are post-processing. No more than a chunk
    is held beside ``out`` and ``sums``; what is drawn does not depend on the number of threads.
    """
    if sums is not None and sums.shape != out.shape:
        raise ValueError(f"sums: must have the shape of out, {out.shape}, got {sums.shape}")
    check_lattice(lattice)
    if not (divisor > 0 and math.isfinite(divisor)):
        raise ValueError(f"divisor: must be positive and finite, got {divisor}")
    sampler = rounded_gaussian(std / lattice)

    def draw(begin: int, end: int, looks: _SecondLooks) -> None:
        cells = np.empty(min(CHUNK, end - begin), dtype=np.int64)
        for at in range(begin, end, CHUNK):
            stop = min(at + CHUNK, end)
            noise = cells[: stop - at]
            sampler._fill_chunk(noise, looks)
            if sums is None:
                _release_noise(out[at:stop], noise, lattice / divisor)
            else:
                _release_sums(out[at:stop], sums[at:stop], noise, 1.0 / lattice, lattice / divisor)

    _over_spans(out.size, draw, stream.keystream, threads)


def check_lattice(lattice: float) -> float:
    """A power of two, so that dividing by it is exact."""
    if not (lattice > 0.0 and math.frexp(lattice)[0] == 0.5):
        raise ValueError(f"lattice: must be a power of two, got {lattice}")
    return lattice


def unit_gaussian(stream: Stream, size: Size) -> F64:
    """Standard normals on the lattice 2^-44: exact multiples, each with its probability to a relative 2^-40.

    For noise alone. Where data and noise are added, round the data and use ``RoundedGaussian``.
    """
    shape = shape_of(size)
    cells = np.empty(math.prod(shape), dtype=np.int64)
    rounded_gaussian(2.0**_UNIT_BITS).fill(cells, stream)
    return np.ldexp(cells.astype(np.float64), -_UNIT_BITS).reshape(shape)


class _SecondLooks:
    """The words of one span, and beside them fresh ones for second looks.

    These come from a key of their own, at a place given by the span's: a call always uses the same bytes.
    """

    def __init__(self, keystream: Keystream) -> None:
        self._keystream = keystream
        self._start: int | None = None
        self._aside: Keystream | None = None

    def fill(self, out: I64) -> None:
        start = self._keystream.fill(out.data)
        self._start = start if self._start is None else self._start
        if sys.byteorder == "big":
            out.byteswap(inplace=True)

    def words(self, pending: int) -> NDArray[np.uint64]:
        """Fresh words: nearly always enough for ``pending`` draws, which need two looks each on average."""
        if self._aside is None:
            assert self._start is not None
            self._aside = self._keystream.branch("second look", self._start << _ASIDE_BITS)
        words = np.empty(_WORDS_A_LOOK * (5 * pending // 2 + 16), dtype=np.uint64)
        self._aside.fill(words.data)
        return words if sys.byteorder == "little" else words.byteswap()


def _over_spans(
    size: int, draw: Callable[[int, int, _SecondLooks], None], keystream: Keystream, threads: int
) -> None:
    """``draw(begin, end, looks)`` for each span of ``range(size)``, by at most so many threads."""
    spans = [(begin, min(begin + SPAN, size)) for begin in range(0, size, SPAN)]
    if threads <= 1 or len(spans) <= 1:
        for begin, end in spans:
            draw(begin, end, _SecondLooks(keystream))
        return
    readers = [_SecondLooks(keystream.reserve(8 * (end - begin))) for begin, end in spans]
    with ThreadPoolExecutor(min(threads, len(spans))) as pool:
        list(pool.map(draw, *zip(*spans, strict=True), readers))


@compiled
def _first_look(words: I64, thresholds: U16, cells: U16, cell_bits: int, again: I64) -> int:
    """Turn words into integers, in place; note where a second look is due, and return how often.

    A column has two cells, its own and its alias: which of them is a place in memory, not a jump.
    """
    shift, count = np.int64(cell_bits), 0
    place = (np.int64(1) << shift) - np.int64(1)
    for i in range(words.size):
        word = words[i]
        column = word & np.int64(_SECOND_LOOK)
        number = (word >> np.int64(63 - _THRESHOLD_BITS)) & np.int64((1 << _THRESHOLD_BITS) - 1)
        cell = np.int64(cells[(column << np.int64(1)) + np.int64(number >= np.int64(thresholds[column]))])
        # The sign turns k into -1 - k.
        words[i] = ((cell << shift) | ((word >> np.int64(_COLUMN_BITS)) & place)) ^ (word >> np.int64(63))
        if cell == np.int64(_SECOND_LOOK):
            again[count] = i
            count += 1
    return count


@compiled
def _second_look(
    pending: I64,
    words: NDArray[np.uint64],
    high: NDArray[np.uint64],
    low: NDArray[np.uint64],
    alias: I64,
    tops: F64,
    rectangles: F64,
    cell_bits: int,
    peak: float,
    per_std: float,
    out: I64,
) -> int:
    """Draw from what the rectangles leave; return for how many the words sufficed.

    A draw for which words are missing is given up: how often it was rejected says nothing of what it becomes.
    """
    shift, at = np.int64(cell_bits), 0
    place = (np.int64(1) << shift) - np.int64(1)
    for n in range(pending.size):
        while True:
            if at + _WORDS_A_LOOK > words.size:
                return n
            word = np.int64(words[at])
            column = word & np.int64((1 << _WIDE_COLUMN_BITS) - 1)
            first, second = words[at + 1], words[at + 2]
            own = first < high[column] or (first == high[column] and second < low[column])
            cell = column if own else alias[column]
            k = ((cell << shift) | ((word >> np.int64(_WIDE_COLUMN_BITS)) & place)) ^ (word >> np.int64(63))
            x = np.float64(k) * per_std
            left = peak * np.exp(-0.5 * x * x) - rectangles[cell]
            at += _WORDS_A_LOOK
            if np.float64(words[at - 1]) * 2.0**-64 * (tops[cell] - rectangles[cell]) < left:
                out[pending[n]] = k
                break
    return pending.size


@compiled
def _release_sums(out: F32, values: F64, cells: I64, per_cell: float, scale: float) -> None:
    for i in range(out.size):
        out[i] = np.float32(np.float64(cells_of(values[i] * per_cell) + cells[i]) * scale)


@compiled
def _release_noise(out: F32, cells: I64, scale: float) -> None:
    for i in range(out.size):
        out[i] = np.float32(np.float64(cells[i]) * scale)


@compiled
def cells_of(value: float) -> np.int64:
    """The nearest integer, at most 2^62 in magnitude; of NaN, zero."""
    nearest = np.rint(value)
    nearest = nearest if nearest < _FARTHEST else _FARTHEST
    nearest = nearest if nearest > -_FARTHEST else -_FARTHEST
    return np.int64(nearest if value == value else 0.0)
