"""What the low bits of a noisy sum give away: attacks on broken forms, which must fail on the lattice.

The broken forms live here alone. Each attack is run on them first: an attack that cannot succeed proves
nothing. Error rates: every test of the new form below 1e-8.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import sparsedp
from sparsedp.randomness import (
    NoiseSource,
    Stream,
    lattice_of,
    noise_lattice,
    release_on_lattice,
    round_gaussian,
)

F32 = NDArray[np.float32]
GRID = 2.0**-16
FALSE_ALARM = 1e-10


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


def float32_box_muller(magnitudes: NDArray[np.int64], angles: NDArray[np.float64]) -> tuple[F32, F32]:
    """The broken sampler: U = magnitude / 2^31 in float32, radius sqrt(-2 ln U) in float32."""
    u = magnitudes.astype(np.float32) * np.float32(2.0**-31)
    radius = np.sqrt(np.float32(-2.0) * np.log(u))
    turn = (2.0 * np.pi * angles).astype(np.float32)
    return radius * np.cos(turn), radius * np.sin(turn)


def broken_normals(size: int, seed: int) -> F32:
    words = stream(seed)
    magnitudes = (words.uint64(size // 2) >> np.uint64(33)).astype(np.int64) + 1
    return np.concatenate(float32_box_muller(magnitudes, words.uniform(size // 2)))


def released(sums: NDArray[np.float64], seed: int) -> F32:
    """The sound form: noise of standard deviation 1 on sums that one example moves by 1."""
    out = np.empty(sums.size, dtype=np.float32)
    lattice = lattice_of(std=1.0, sensitivity=1.0, coordinates=sums.size)
    release_on_lattice(out, sums, lattice=lattice, std=1.0, divisor=1.0, stream=stream(seed))
    return out


def fits(hits: int, trials: int, probability: float) -> bool:
    return bool(stats.binomtest(hits, trials, probability).pvalue > FALSE_ALARM)


# 0. Plain addition in floating point


def finer_than(lattice: float, outputs: NDArray[np.floating], radius: float) -> float:
    """How often an output lies near zero but off the lattice."""
    steps = outputs / lattice
    return float(np.mean((np.abs(outputs) < radius) & (steps != np.rint(steps))))


@pytest.mark.parametrize(("kind", "bits"), [(np.float64, 53), (np.float32, 24)])
def test_plain_addition_gives_the_data_away_and_the_lattice_does_not(kind: type, bits: int) -> None:
    """0 against C: near zero, C + noise reaches only multiples of C 2^-bits, plain noise reaches more.

    The event never happens under C, so its probability under 0 is a lower bound on delta at every epsilon.
    """
    words = stream(11)
    radii = np.sqrt(-2.0 * np.log(words.uniform(100_000)))
    noise = (radii * np.cos(2.0 * np.pi * words.uniform(100_000))).astype(kind)
    clip, lattice = kind(1.0), 2.0**-bits
    assert finer_than(lattice, clip + noise, 0.5) == 0.0
    assert finer_than(lattice, kind(0.0) + noise, 0.5) > 0.25

    public = noise_lattice(1.0)
    for value, seed in ((0.0, 12), (1.0, 13)):
        cells = round_gaussian(np.full(100_000, value), std=1.0, lattice=public, stream=stream(seed))
        assert finer_than(public, public * cells, 100.0) == 0.0
        for width in (1, 4, 8):
            assert fits(int(np.count_nonzero(cells % 2**width == 0)), 100_000, 2.0**-width)


# 1. The lattice: sums added onto the noise in float32

COORDINATES = 4000


def sums_onto_noise(batch: int, *, extra: bool) -> F32:
    """The broken step: half the examples are +1, half -1, one more perhaps 0.3; rounded to a grid at the end."""
    values = broken_normals(COORDINATES, seed=batch + extra)
    for gradient, count in ((1.0, batch // 2), (-1.0, batch // 2), (0.3, int(extra))):
        for _ in range(count):
            values += np.float32(gradient)
    return np.rint(values / np.float32(GRID)) * np.float32(GRID)


def multiples(values: F32, step: float) -> int:
    return int(np.count_nonzero(values.astype(np.float64) % step == 0.0))


@pytest.mark.parametrize(("batch", "cells"), [(1024, 2), (8192, 16), (65536, 64)])
def test_the_lattice_of_a_sum_added_onto_noise_tells_the_batches_apart(batch: int, cells: int) -> None:
    without, with_extra = sums_onto_noise(batch, extra=False), sums_onto_noise(batch, extra=True)
    assert multiples(without, cells * GRID) == COORDINATES
    assert multiples(with_extra, cells * GRID) < 0.75 * COORDINATES


@pytest.mark.parametrize("batch", [1024, 8192, 65536])
def test_the_lattice_of_a_release_is_the_same_for_both(batch: int) -> None:
    lattice = lattice_of(std=1.0, sensitivity=1.0, coordinates=COORDINATES)
    for extra in (0.0, 0.3):
        sums = np.full(COORDINATES, batch // 2 * 1.0 + batch // 2 * -1.0 + extra)
        values = released(sums, seed=batch + int(10 * extra))
        for bits in range(1, 11):
            assert fits(multiples(values, lattice * 2**bits), COORDINATES, 2.0**-bits)


# 2. Rings: with 24 bits near U = 1 the squares of small radii are multiples of 2^-23, nearly

PAIRS = 1_550_000


def near_rings(values: F32) -> tuple[int, int]:
    """Of pairs with a small radius: how many lie within an eighth of a ring, and how many there are."""
    x, y = values.astype(np.float64).reshape(2, -1)
    square = x**2 + y**2
    k = -np.expm1(-0.5 * square[square < 2.0**-10]) * 2.0**24  # U = 1 - k 2^-24
    return int(np.count_nonzero(np.abs(k - np.rint(k)) < 0.125)), k.size


def test_small_radii_of_float32_box_muller_lie_on_rings_and_those_of_a_release_do_not() -> None:
    """A shift of norm 1 over all coordinates, which a Gaussian hides with an advantage of 0.383 at most."""
    shift = np.full(2 * PAIRS, 1.0 / np.sqrt(2 * PAIRS))
    noise = broken_normals(2 * PAIRS, seed=21)
    hits, total = near_rings(noise)
    assert hits == total > 500
    moved, total = near_rings((noise + shift.astype(np.float32)).astype(np.float32))
    assert moved < 0.4 * total

    for sums in (np.zeros(2 * PAIRS), shift):
        hits, total = near_rings(released(sums, seed=22))
        assert total > 500
        assert fits(hits, total, 0.25)


# 3. Tails: radii are those of the few smallest U, several cells apart


def near_tail_radii(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[int, int]:
    """Of pairs with a radius beyond 5: how many lie within a twentieth of a gap of one that U can give."""
    radius = np.hypot(x, y)
    radius = radius[radius > 5.0]
    m = 2.0**31 * np.exp(-0.5 * radius**2)
    return int(np.count_nonzero(np.abs(m - np.rint(m)) < 0.05)), radius.size


def test_tail_radii_of_float32_box_muller_are_far_apart_and_those_of_a_release_are_not() -> None:
    words = stream(31)
    magnitudes = (words.uint64(20_000_000) >> np.uint64(33)).astype(np.int64) + 1
    tail = magnitudes[magnitudes < 8192]
    x, y = float32_box_muller(tail, words.uniform(tail.size))
    hits, total = near_tail_radii(x.astype(np.float64), y.astype(np.float64))
    assert total > 40
    assert hits > 0.8 * total
    gaps = np.diff(np.sqrt(-2.0 * np.log(np.arange(1, 4096) * 2.0**-31)))
    assert np.abs(gaps).min() > 3 * GRID

    found = [near_tail_radii(*released(np.zeros(10_000_000), seed).reshape(2, -1)) for seed in range(32, 36)]
    hits, total = np.sum(found, axis=0)
    assert total > 40
    assert fits(int(hits), int(total), 0.1)


# The rule, on the source


FLOAT_NOISE = re.compile(r"\b(?:stream|noise|selection|sampling)\.(?:normal|laplace|gumbel)\(")
ALLOWED = {"convex/mean/measurement.py", "randomness/rounding.py"}
"""A public random matrix; keys that are rounded to a lattice."""


def test_no_module_adds_float_noise_to_data() -> None:
    source = Path(sparsedp.__file__).parent
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if FLOAT_NOISE.search(path.read_text())
    }
    assert found == ALLOWED
