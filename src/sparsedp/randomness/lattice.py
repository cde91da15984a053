"""Sums on a public lattice with Gaussian noise in whole cells, added last.

If k is a function of the data that one example moves by at most D in l2, then k + Z with a rounded Gaussian Z is
the Gaussian mechanism on k, rounded to integers: rounding is post-processing, so its privacy curve is that of the
Gaussian mechanism, with no gap for floating point. What floats do afterwards to k + Z is post-processing too.
"""

from __future__ import annotations

import math

import numpy as np

from sparsedp.core.arrays import F32, F64, I64
from sparsedp.core.compiled import compiled
from sparsedp.randomness.cells import CHUNK, LARGEST_STD, SMALLEST_STD, rounded_gaussian
from sparsedp.randomness.keystream import Keystream
from sparsedp.randomness.stream import Stream

_LATTICE_SLACK = 2.0**-11
_SMALLEST_LATTICE = 2.0**-900
_FARTHEST = 2.0**62


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
    if lattice < _SMALLEST_LATTICE:
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

    ``sums`` None means zeros. Guarantee: if the rounded sums of two neighbours are at most D apart (see
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

    def draw(begin: int, end: int, keystream: Keystream) -> None:
        cells = np.empty(min(CHUNK, end - begin), dtype=np.int64)
        for at in range(begin, end, CHUNK):
            stop = min(at + CHUNK, end)
            noise = cells[: stop - at]
            sampler.fill_chunk(noise, keystream)
            if sums is None:
                _release_noise(out[at:stop], noise, lattice / divisor)
            else:
                _release_sums(out[at:stop], sums[at:stop], noise, 1.0 / lattice, lattice / divisor)

    sampler.over_spans(out.size, draw, stream.keystream, threads)


def check_lattice(lattice: float) -> float:
    """A power of two, so that dividing by it is exact."""
    if not (lattice > 0.0 and math.frexp(lattice)[0] == 0.5):
        raise ValueError(f"lattice: must be a power of two, got {lattice}")
    return lattice


@compiled
def _release_sums(out: F32, values: F64, cells: I64, per_cell: float, scale: float) -> None:
    for i in range(out.size):
        out[i] = np.float32(np.float64(nearest_cell(values[i] * per_cell) + cells[i]) * scale)


@compiled
def _release_noise(out: F32, cells: I64, scale: float) -> None:
    for i in range(out.size):
        out[i] = np.float32(np.float64(cells[i]) * scale)


@compiled
def nearest_cell(value: float) -> np.int64:
    """The nearest integer, at most 2^62 in magnitude; of NaN, zero."""
    nearest = np.rint(value)
    nearest = nearest if nearest < _FARTHEST else _FARTHEST
    nearest = nearest if nearest > -_FARTHEST else -_FARTHEST
    return np.int64(nearest if value == value else 0.0)
