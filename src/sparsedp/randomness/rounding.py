"""Values plus noise, rounded to a lattice: the integers of an exact sum, not of a float one.

The noise is an integer of 2^44 cells to its scale, spread evenly over its cell by 64 more bits. Times any scale, and
with the value added, it is rounded to a cell of the lattice by arithmetic of 106 bits: which cell it falls into is
decided to 2^-50 of a cell. So an integer Y has the probability that continuous noise on the exact value would give
it, to a relative 2^-40. Y is a rounding of the Gaussian (or Laplace) mechanism itself: post-processing, with no
allowance for the rounding of the data.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from sparsedp.core.arrays import F64, I64
from sparsedp.core.compiled import compiled
from sparsedp.randomness.cells import CHUNK, SMALLEST_STD, CellSampler, rounded_gaussian, two_sided_geometric
from sparsedp.randomness.stream import Stream

LATTICE_BITS = 24
LARGEST_SCALE = 2.0**46
_LARGEST_CELL = 2.0**61
_SMALLEST, _LARGEST = 2.0**-900, 2.0**900
_FINE_BITS = 44
_SPLIT = 2.0**27 + 1.0


def noise_lattice(scale: float, bits: int = LATTICE_BITS) -> float:
    """The public lattice for noise of this scale: the power of two in (2^-(bits + 1), 2^-bits] times ``scale``."""
    scale = float(scale)
    if not _SMALLEST <= scale <= _LARGEST:
        raise ValueError(f"scale: the noise must lie in [2^-900, 2^900], got {scale}")
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - bits)


def passing_cell(threshold: float, lattice: float) -> int:
    """The smallest passing integer: its lower border is nearest to the threshold."""
    return round(min(max(threshold / lattice + 0.5, -_LARGEST_CELL), _LARGEST_CELL))


def passing_probability(lowest: int, std_cells: float) -> float:
    """P(Z >= lowest) for a rounded Gaussian Z: beyond the lower border of ``lowest``."""
    return float(ndtr((0.5 - lowest) / std_cells))


def round_gaussian(values: ArrayLike, *, std: float, lattice: float, stream: Stream) -> I64:
    """``round((values + N(0, std^2)) / lattice)``, with independent noise on every value.

    Guarantee: if one example moves the values by at most D in l2, the event is ``Gaussian(std / D)``: each
    integer has the probability that the rounded Gaussian mechanism gives it, to a relative 2^-40, out to 11.5
    standard deviations. The lattice is a power of two, at least ``std / 2^46``.
    """
    return _round(values, std, lattice, stream, rounded_gaussian(2.0**_FINE_BITS), 0.0, one_sided=False)


def round_laplace(values: ArrayLike, *, scale: float, lattice: float, stream: Stream) -> I64:
    """``round((values + Laplace(scale)) / lattice)``, with independent noise on every value.

    Guarantee: that of ``round_gaussian`` for the Laplace mechanism, out to 64 times its scale.
    """
    return _round(values, scale, lattice, stream, two_sided_geometric(_FINE_BITS), 0.5, one_sided=False)


def round_exponential(values: ArrayLike, *, scale: float, lattice: float, stream: Stream) -> I64:
    """``round((values + Exponential(scale)) / lattice)``, independent noise on every value; see ``round_laplace``."""
    return _round(values, scale, lattice, stream, two_sided_geometric(_FINE_BITS), 0.5, one_sided=True)


def round_gumbel(values: ArrayLike, *, scale: float, lattice: float, stream: Stream) -> I64:
    """``round((values + Gumbel(scale)) / lattice)``, with independent noise on every value.

    Guarantee: the noise is a continuous Gumbel number, off by at most 2^-46 of its scale: the probability to
    pass a given integer is right to a relative 2^-45. For choosing the largest, not for release.
    """
    array, flat, factor = _checked(values, scale, lattice)
    cells = np.empty(flat.size, dtype=np.int64)
    _add_cells(flat, stream.gumbel(flat.size), 1.0 / lattice, factor, cells)
    return cells.reshape(array.shape)


def geometric(log_fail: F64, stream: Stream) -> I64:
    """How many tosses of a coin fail before one succeeds; coin n fails with probability ``exp(log_fail[n])``.

    Guarantee: every number has its probability to a relative 2^-40. Numbers beyond 2^62 are cut to that.
    Proof: ``floor(E / -log_fail)`` with E exponential. Beyond a mean of 2^40 all but the upper bits are even.
    """
    with np.errstate(divide="ignore"):
        means = np.minimum(-1.0 / np.asarray(log_fail, dtype=np.float64), 2.0**100)
    shift = np.maximum(np.frexp(means)[1] - 40, 0)
    cells = np.empty((means.size, 1), dtype=np.int64)
    two_sided_geometric(_FINE_BITS).fill(cells.reshape(-1), stream)
    cells ^= cells >> 63
    spread = stream.uint64(means.size).view(np.int64).reshape(-1, 1)
    _round_rows(cells, spread, np.ldexp(means, -shift - _FINE_BITS), 0.5, 0.0)
    upper = cells.reshape(-1)
    low = (stream.uint64(means.size) & ((np.uint64(1) << shift.astype(np.uint64)) - np.uint64(1))).view(
        np.int64
    )
    fits = np.ldexp(upper.astype(np.float64) + 1.0, shift) <= 2.0**62
    return np.where(fits, (upper << np.where(fits, shift, 0)) | low, np.int64(2**62))


def rounded_gaussian_tail(lowest: int, std_cells: float, count: int, stream: Stream) -> I64:
    """``count`` rounded Gaussians of ``std_cells``, each given that it is at least ``lowest``, not negative.

    Guarantee: every integer has its conditional probability to a relative 2^-40.
    Proof: with s = ``std_cells``, P(lowest + m) is proportional to ``exp(-m lowest / s^2) exp(-m^2 / (2 s^2))``:
    a geometric number m, accepted if an exponential one passes m^2 / (2 s^2). Near the centre, where few
    would be accepted, unconditional draws are accepted if they are large enough.
    """
    if not (lowest >= 0 and SMALLEST_STD <= std_cells <= LARGEST_SCALE / 2):
        raise ValueError(f"std_cells: must lie in [2^22, 2^45] and lowest not be negative, got {std_cells}")
    samples = np.empty(count, dtype=np.int64)
    have = 0
    while have < count:
        trials = np.zeros(2 * (count - have) + 16)
        if 2 * lowest < std_cells:
            drawn = round_gaussian(trials, std=std_cells, lattice=1.0, stream=stream)
            drawn = drawn[drawn >= lowest]
        else:
            # Shifted by half a cell, the rounded exponential is a geometric number.
            past = round_exponential(
                trials - 0.5, scale=std_cells * (std_cells / lowest), lattice=1.0, stream=stream
            )
            drawn = lowest + past[stream.exponential(past.size) > 0.5 * (past / std_cells) ** 2]
        taken = min(drawn.size, count - have)
        samples[have : have + taken] = drawn[:taken]
        have += taken
    return samples


def _round(
    values: ArrayLike,
    scale: float,
    lattice: float,
    stream: Stream,
    fine: CellSampler,
    centre: float,
    *,
    one_sided: bool,
) -> I64:
    array, flat, factor = _checked(values, scale, lattice)
    out = np.empty(flat.size, dtype=np.int64)
    for begin in range(0, flat.size, CHUNK):
        part = out[begin : begin + CHUNK]
        fine.fill(part, stream)
        spread = stream.uint64(part.size).view(np.int64)
        if one_sided:
            part ^= part >> 63
        _round_values(
            part, spread, flat[begin : begin + CHUNK], 1.0 / lattice, factor * 2.0**-_FINE_BITS, centre
        )
    return out.reshape(array.shape)


def _checked(values: ArrayLike, scale: float, lattice: float) -> tuple[F64, F64, float]:
    """The values as they are and as a vector, and the scale in cells."""
    array = np.asarray(values, dtype=np.float64, order="C")
    flat, factor = array.reshape(-1), float(scale) / lattice
    if not (0.0 < factor <= LARGEST_SCALE and math.frexp(lattice)[0] == 0.5):
        raise ValueError(
            f"lattice: must be a power of two and at least scale / 2^46, got {lattice} for {scale}"
        )
    if flat.size and not np.abs(flat).max() <= _LARGEST_CELL * lattice:
        raise ValueError(f"values: must be finite and at most 2^61 cells of the lattice {lattice}")
    return array, flat, factor


@compiled
def _add_cells(values: F64, noise: F64, per_cell: float, factor: float, out: I64) -> None:
    """``round(values / lattice + factor noise)``, the whole parts added as integers."""
    for i in range(out.size):
        value, more = values[i] * per_cell, noise[i] * factor
        rounded, rounded_more = np.rint(value), np.rint(more)
        rest = np.floor((value - rounded) + (more - rounded_more) + 0.5)
        out[i] = np.int64(rounded) + np.int64(rounded_more) + np.int64(rest)


@compiled
def _round_values(
    cells: I64, spread: I64, values: F64, per_cell: float, factor: float, centre: float
) -> None:
    head = _upper_half(factor)
    for i in range(cells.size):
        value = values[i] * per_cell
        rounded = np.rint(value)
        noise, rest = _scaled(np.float64(cells[i]) + centre, spread[i], factor, head)
        cells[i] = np.int64(rounded) + np.int64(noise) + np.int64(np.floor(rest + (value - rounded) + 0.5))


@compiled
def _round_rows(cells: I64, spread: I64, factors: F64, centre: float, up: float) -> None:
    """``floor(factor (cell + centre + u) + up)``, one factor a row."""
    for n in range(cells.shape[0]):
        factor = factors[n]
        head = _upper_half(factor)
        for c in range(cells.shape[1]):
            noise, rest = _scaled(np.float64(cells[n, c]) + centre, spread[n, c], factor, head)
            cells[n, c] = np.int64(noise) + np.int64(np.floor(rest + up))


@compiled
def _scaled(cell: float, spread: np.int64, factor: float, head: float) -> tuple[float, float]:
    """``factor * (cell + u)``, u in [-1/2, 1/2) from a word, as a whole number and a rest.

    The product is exact, by Dekker's method; ``head`` is the upper half of the factor.
    """
    tail = factor - head
    product = factor * cell
    upper = _upper_half(cell)
    lower = cell - upper
    lost = ((head * upper - product) + head * lower + tail * upper) + tail * lower
    rounded = np.rint(product)
    u = (np.float64(spread) + 0.5) * 2.0**-64
    return rounded, (product - rounded) + (lost + factor * u)


@compiled
def _upper_half(value: float) -> float:
    """The upper 26 bits of a float."""
    return _SPLIT * value - (_SPLIT * value - value)
