"""Rounded noisy values: exact arithmetic, and the laws with any mean and scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from sparsedp.randomness import (
    NoiseSource,
    Stream,
    geometric,
    noise_lattice,
    round_exponential,
    round_gaussian,
    round_gumbel,
    round_laplace,
    rounded_gaussian_tail,
)
from sparsedp.randomness.rounding import LARGEST_SCALE, _round_rows, _round_values

ROUNDINGS = {
    "gaussian": round_gaussian,
    "laplace": round_laplace,
    "exponential": round_exponential,
    "gumbel": round_gumbel,
}
LAWS = {
    "gaussian": stats.norm,
    "laplace": stats.laplace,
    "exponential": stats.expon,
    "gumbel": stats.gumbel_r,
}


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


def rounded(name: str, values: object, scale: float, lattice: float, seed: int) -> np.ndarray:
    if name == "gaussian":
        return round_gaussian(values, std=scale, lattice=lattice, stream=stream(seed))
    return ROUNDINGS[name](values, scale=scale, lattice=lattice, stream=stream(seed))


words = st.integers(-(2**63), 2**63 - 1)
fine_cells = st.integers(-(64 << 44), 64 << 44)
scales = st.floats(2.0**-20, LARGEST_SCALE)


def is_cell_of(cell: int, place: Fraction) -> bool:
    """Does ``place`` round to ``cell``? Within 2^-48 of the border between two cells either will do."""
    return cell in {math.floor(place + Fraction(1, 2) + sign * Fraction(1, 2**48)) for sign in (-1, 1)}


def noise_of(k: int, word: int, scale: float, centre: float) -> Fraction:
    return Fraction(scale) / 2**44 * (k + Fraction(centre) + (Fraction(word) + Fraction(1, 2)) / 2**64)


@given(fine_cells, words, scales, st.sampled_from([0.0, 0.5]), st.floats(-(2.0**61), 2.0**61))
def test_a_sum_falls_into_the_cell_that_rational_arithmetic_says(
    k: int, word: int, scale: float, centre: float, value: float
) -> None:
    cells = np.array([k])
    _round_values(cells, np.array([word]), np.array([value]), 1.0, scale * 2.0**-44, centre)
    assert is_cell_of(int(cells[0]), Fraction(value) + noise_of(k, word, scale, centre))


def test_large_products_are_not_rounded() -> None:
    """Where a float64 of the product has no bits left for the place within a cell."""
    generator = np.random.default_rng(1)
    cells = generator.integers(-(64 << 44), 64 << 44, 500)
    spread = generator.integers(-(2**63), 2**63 - 1, 500)
    scale = 1.37 * 2.0**45
    found = cells.copy()
    _round_values(found, spread, np.zeros(500), 1.0, scale * 2.0**-44, 0.5)
    for cell, k, word in zip(found.tolist(), cells.tolist(), spread.tolist(), strict=True):
        assert is_cell_of(cell, noise_of(k, word, scale, 0.5))


@given(st.integers(-(12 << 44), 12 << 44), words, scales)
def test_a_row_falls_into_the_cell_that_rational_arithmetic_says(k: int, word: int, std: float) -> None:
    cells = np.array([[k]])
    _round_rows(cells, np.array([[word]]), np.array([std * 2.0**-44]), 0.0, 0.5)
    assert is_cell_of(int(cells[0, 0]), noise_of(k, word, std, 0.0))


@pytest.mark.parametrize("name", ROUNDINGS)
@pytest.mark.parametrize(("mean", "scale"), [(0.0, 1.0), (0.37, 3.3), (-7.49, 0.6), (0.5, 2.0)])
def test_few_cells_have_the_probabilities_of_the_exact_sum(
    name: str, mean: float, scale: float, agrees: Callable[..., bool]
) -> None:
    drawn = rounded(name, np.full(400_000, mean), scale, 1.0, seed=1)
    k = np.arange(-200, 202)
    counts = np.bincount(drawn + 200, minlength=k.size - 1)
    for wrong, factor, shift in ((False, 1.0, 0.0), (True, 1.03, 0.0), (True, 1.0, 0.03 * scale)):
        edges = LAWS[name].cdf((k - 0.5 - mean - shift) / (scale * factor))
        assert agrees(counts, np.diff(edges)) is not wrong


@pytest.mark.parametrize("name", ROUNDINGS)
def test_fine_lattices_have_the_law_and_its_scale(name: str, uniform_on_unit: Callable[..., bool]) -> None:
    for scale, lattice in ((2.5, noise_lattice(2.5)), (1e-6, noise_lattice(1e-6, 40)), (1e9, 1.0)):
        value = 3.7 * scale
        drawn = rounded(name, np.full(400_000, value), scale, lattice, seed=2) * lattice - value
        for factor in (1.0, 1.02, 0.98):
            assert uniform_on_unit(LAWS[name].cdf(drawn / (factor * scale))) is (factor == 1.0)


@pytest.mark.parametrize("name", ROUNDINGS)
@pytest.mark.parametrize("value", [0.0, 0.3, 1 / 3, 1e5])
def test_low_bits_do_not_show_the_value(name: str, value: float, agrees: Callable[..., bool]) -> None:
    drawn = rounded(name, np.full(400_000, value), 1.0, noise_lattice(1.0), seed=3)
    for shift in (0, 6):
        assert agrees(np.bincount((drawn >> shift) & 63, minlength=64), np.full(64, 1 / 64))


def test_neighbours_that_differ_by_less_than_a_cell_have_different_laws() -> None:
    """The data are not rounded first: half a cell more moves every probability by half a cell."""
    size, scale = 2_000_000, 2.0
    low = np.mean(round_laplace(np.zeros(size), scale=scale, lattice=1.0, stream=stream(4)) >= 1)
    high = np.mean(round_laplace(np.full(size, 0.4), scale=scale, lattice=1.0, stream=stream(5)) >= 1)
    for seen, truth in ((low, 0.5 * math.exp(-0.25)), (high, 0.5 * math.exp(-0.05))):
        assert abs(seen - truth) < 6.5 * math.sqrt(0.25 / size)


# The tail


@pytest.mark.parametrize("lowest", [0.0, 0.3, 0.5, 1.0, 3.0, 7.0])
def test_the_tail_has_the_conditional_law(lowest: float, uniform_on_unit: Callable[..., bool]) -> None:
    std = 1.3 * 2.0**24
    edge = round(lowest * std)
    drawn = rounded_gaussian_tail(edge, std, 200_000, stream(9))
    assert drawn.min() >= edge
    z = drawn / std
    assert uniform_on_unit(special.ndtr(-z) / special.ndtr(-lowest))
    assert not uniform_on_unit(special.ndtr(-z * (1.01 if lowest > 1 else 1.03)) / special.ndtr(-lowest))


def test_the_tail_has_fine_low_bits_and_starts_at_its_edge(agrees: Callable[..., bool]) -> None:
    drawn = rounded_gaussian_tail(5 * 2**22, 2.0**22, 300_000, stream(10))
    assert agrees(np.bincount(drawn & 63, minlength=64), np.full(64, 1 / 64))
    # Near the edge the probabilities fall by exp(-5 m / s): nearly even over the first cells.
    assert drawn.min() - 5 * 2**22 < 100


# Coins


@pytest.mark.parametrize("p", [0.9, 0.3, 0.02])
def test_failures_before_a_success(p: float, agrees: Callable[..., bool]) -> None:
    drawn = geometric(np.full(1_000_000, math.log1p(-p)), stream(11))
    counts = np.bincount(np.minimum(drawn, 400), minlength=401)
    k = np.arange(400)
    for factor in (1.0, 1.02):
        law = factor * p * (1 - factor * p) ** k if factor * p < 1 else np.zeros(400)
        assert agrees(counts, np.append(law, 1 - law.sum())) is (factor == 1.0)


@pytest.mark.parametrize("bits", [20, 39, 45, 58])
def test_long_runs_of_failures(
    bits: int, agrees: Callable[..., bool], uniform_on_unit: Callable[..., bool]
) -> None:
    """The mean is 2^bits tosses: the law of its upper bits, and even lower bits."""
    drawn = geometric(np.full(200_000, -(2.0**-bits)), stream(12))
    assert uniform_on_unit(np.exp(-(drawn * 2.0**-bits)))
    assert not uniform_on_unit(np.exp(-(drawn * 1.03 * 2.0**-bits)))
    assert agrees(np.bincount(drawn & 63, minlength=64), np.full(64, 1 / 64))


def test_a_coin_that_never_succeeds_and_one_that_always_does() -> None:
    drawn = geometric(np.array([-0.0, -1e-300, -math.inf, -800.0]), stream(13))
    assert drawn.tolist() == [2**62, 2**62, 0, 0]


# What is refused


def test_bad_arguments_are_named() -> None:
    for name in ROUNDINGS:
        with pytest.raises(ValueError, match="lattice: must be a power of two"):
            rounded(name, [0.0], 1.0, 0.3, seed=1)
        with pytest.raises(ValueError, match=r"lattice: must be .* at least scale"):
            rounded(name, [0.0], 1.0, 2.0**-47, seed=1)
        for value in (math.nan, math.inf, 2.0**62):
            with pytest.raises(ValueError, match="values: must be finite"):
                rounded(name, [0.0, value], 1.0, 1.0, seed=1)
    for scale in (0.0, -1.0, math.nan, math.inf, 1e300):
        with pytest.raises(ValueError, match="scale: the noise must lie"):
            noise_lattice(scale)
    with pytest.raises(ValueError, match="std_cells: must lie"):
        rounded_gaussian_tail(-1, 2.0**24, 1, stream(1))


@pytest.mark.parametrize("scale", [1.0, 0.999, 1.001, 1e-30, 7e20])
@pytest.mark.parametrize("bits", [24, 40])
def test_the_lattice_of_a_scale(scale: float, bits: int) -> None:
    lattice = noise_lattice(scale, bits)
    assert math.frexp(lattice)[0] == 0.5
    assert 2.0 ** -(bits + 1) < lattice / scale <= 2.0**-bits
