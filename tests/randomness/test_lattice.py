"""The lattice of a sum, and the release on it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparsedp.randomness import (
    NoiseSource,
    Stream,
    lattice_of,
    release_on_lattice,
    rounded_gaussian,
)
from sparsedp.randomness.cells import LARGEST_STD, SMALLEST_STD, SPAN


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


@pytest.mark.parametrize("coordinates", [1, 3, 10**6, 10**10])
@pytest.mark.parametrize("sensitivity", [1.0, 0.3, 7.7e-5, 1e6])
@pytest.mark.parametrize("multiplier", [1e-3, 0.5, 1.0, 37.0])
def test_a_lattice_leaves_half_the_clip_slack(
    coordinates: int, sensitivity: float, multiplier: float
) -> None:
    std = multiplier * sensitivity
    lattice = lattice_of(std=std, sensitivity=sensitivity, coordinates=coordinates)
    assert math.frexp(lattice)[0] == 0.5
    assert lattice * math.sqrt(coordinates) <= 2.0**-11 * sensitivity
    assert SMALLEST_STD <= std / lattice <= LARGEST_STD
    bound = min(2.0**-11 * sensitivity / math.sqrt(coordinates), std / SMALLEST_STD)
    assert bound < 2 * lattice


def test_rounding_moves_two_sums_apart_by_less_than_half_the_slack() -> None:
    generator = np.random.default_rng(2)
    d, sensitivity = 10_000, 1.0
    lattice = lattice_of(std=1.0, sensitivity=sensitivity, coordinates=d)
    for _ in range(20):
        x = generator.normal(size=d) * 10.0 ** generator.uniform(-3, 3)
        step = generator.choice([-1.0, 1.0], d) * sensitivity / math.sqrt(d) * (1 - 2.0**-10)
        apart = np.linalg.norm(np.rint((x + step) / lattice) - np.rint(x / lattice)) * lattice
        assert apart <= sensitivity * (1 - 2.0**-11)


@pytest.mark.parametrize("argument", ["std", "sensitivity", "coordinates"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_bad_lattices_are_refused_by_name(argument: str, value: float) -> None:
    arguments: dict[str, float] = {"std": 1.0, "sensitivity": 1.0, "coordinates": 10, argument: value}
    with pytest.raises(ValueError, match=f"{argument}: must be positive"):
        lattice_of(**arguments)  # type: ignore[arg-type]


def test_noise_that_no_word_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="std: at most 2\\^46 lattice cells"):
        lattice_of(std=1e9, sensitivity=1.0, coordinates=10**9)
    with pytest.raises(ValueError, match="sensitivity: too small"):
        lattice_of(std=1e-290, sensitivity=1e-290, coordinates=1)


def test_a_release_is_the_rounded_sum_plus_the_noise_over_the_divisor() -> None:
    sums = np.random.default_rng(3).normal(size=40_000) * 50
    lattice, std, divisor = 2.0**-26, 1.7, 96.0
    out, noise = np.empty(sums.size, dtype=np.float32), np.empty(sums.size, dtype=np.int64)
    rounded_gaussian(std / lattice).fill(noise, stream(9))
    release_on_lattice(out, sums, lattice=lattice, std=std, divisor=divisor, stream=stream(9))
    cells = np.rint(sums / lattice).astype(np.int64) + noise
    assert np.array_equal(out, (cells * (lattice / divisor)).astype(np.float32))


@pytest.mark.parametrize("threads", [1, 2])
def test_without_sums_the_release_is_that_of_zeros(threads: int) -> None:
    a, b = np.empty((2, SPAN + 100), dtype=np.float32)
    arguments = {"lattice": 2.0**-24, "std": 0.9, "divisor": 10.0}
    release_on_lattice(a, None, stream=stream(10), threads=threads, **arguments)
    release_on_lattice(b, np.zeros(b.size), stream=stream(10), **arguments)
    assert np.array_equal(a, b)


def test_sums_too_large_for_the_lattice_are_cut_and_nan_is_zero() -> None:
    sums = np.array([math.inf, -math.inf, 1e300, math.nan, 2.0**39])
    out = np.empty(5, dtype=np.float32)
    release_on_lattice(out, sums, lattice=2.0**-22, std=1.0, divisor=1.0, stream=stream(11))
    assert out[:3].tolist() == [2.0**40, -(2.0**40), 2.0**40]
    assert abs(out[3]) < 11.6
    assert out[4] == np.float32(2.0**39)


def test_bad_releases_are_refused_by_name() -> None:
    out = np.empty(3, dtype=np.float32)
    for change, message in (
        ({"lattice": 0.3}, "lattice: must be a power of two"),
        ({"divisor": 0.0}, "divisor: must be positive"),
        ({"std": 1e-3}, "std_cells: must lie in"),
        ({"sums": np.zeros(4)}, "sums: must have the shape"),
    ):
        arguments = {"sums": np.zeros(3), "lattice": 2.0**-24, "std": 1.0, "divisor": 1.0, **change}
        with pytest.raises(ValueError, match=message):
            release_on_lattice(out, stream=stream(1), **arguments)
