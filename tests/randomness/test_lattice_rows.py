"""Rounded Gaussians with a standard deviation per row: exact rescaling, and the law."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sparsedp.randomness import NoiseSource, Stream, rounded_gaussian_rows
from sparsedp.randomness.lattice_rows import LARGEST_ROW_STD, _rescale


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


@given(
    st.integers(-(12 << 44), 12 << 44),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(2.0**-20, LARGEST_ROW_STD),
)
def test_a_number_falls_into_the_cell_that_integer_arithmetic_says(k: int, word: int, std: float) -> None:
    cells, spread = np.array([[k]]), np.array([[word]])
    _rescale(cells, spread, np.array([std * 2.0**-44]))
    place = Fraction(std) / 2**44 * (k + (Fraction(word) + Fraction(1, 2)) / 2**64) + Fraction(1, 2)
    # Where it lies within 2^-50 of the border between two cells, either will do.
    assert int(cells[0, 0]) in {
        math.floor(place - Fraction(1, 2**50)),
        math.floor(place + Fraction(1, 2**50)),
    }


@pytest.mark.parametrize("std", [0.3, 1.0, 7.7])
def test_few_cells_have_their_probabilities(std: float, agrees: Callable[..., bool]) -> None:
    drawn = rounded_gaussian_rows(np.array([std]), 1_000_000, stream(1)).ravel()
    k = np.arange(-100, 101)
    counts = np.bincount(drawn + 100, minlength=k.size)
    law = [np.diff(stats.norm.cdf((np.append(k, 101) - 0.5) / (std * factor))) for factor in (1.0, 1.02)]
    assert agrees(counts, law[0])
    assert not agrees(counts, law[1])


def test_every_row_has_its_own_scale(uniform_on_unit: Callable[..., bool]) -> None:
    stds = np.array([2.0**20, 3.3e7, 2.0**40])
    drawn = rounded_gaussian_rows(stds, 400_000, stream(2))
    for row, std in zip(drawn, stds, strict=True):
        assert uniform_on_unit(stats.norm.cdf(row / std))
        assert not uniform_on_unit(stats.norm.cdf(row / (1.02 * std)))


def test_a_row_that_owes_nothing_gets_nothing() -> None:
    drawn = rounded_gaussian_rows(np.array([0.0, 1e6]), 50, stream(3))
    assert not drawn[0].any()
    assert drawn[1].all()


def test_low_bits_are_uniform_where_the_scale_is_no_power_of_two(agrees: Callable[..., bool]) -> None:
    drawn = rounded_gaussian_rows(np.full(1000, 2.0**40 / 1.37), 1000, stream(4))
    assert agrees(np.bincount(drawn.ravel() & 63, minlength=64), np.full(64, 1 / 64))


@pytest.mark.parametrize("rows", [0, 1, 3, 5000])
@pytest.mark.parametrize("dim", [1, 16])
def test_shapes_and_bytes(rows: int, dim: int) -> None:
    one = stream(5)
    assert rounded_gaussian_rows(np.full(rows, 10.0), dim, one).shape == (rows, dim)
    assert one.state()["position"] == 16 * rows * dim


@pytest.mark.parametrize("std", [-1.0, math.nan, math.inf, 2.0**41])
def test_a_bad_scale_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="std_cells: must be"):
        rounded_gaussian_rows(np.array([1.0, std]), 2, stream(1))
