import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.randomness import NoiseSource, Stream, discrete_gaussian, discrete_laplace
from sparsedp.randomness.discrete import _coins, _exponential_coins

WIDTH = 2000


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


def gaussian_pmf(sigma2: float) -> np.ndarray:
    weights = np.exp(-(np.arange(-WIDTH, WIDTH + 1.0) ** 2) / (2 * sigma2))
    return weights / weights.sum()


def laplace_pmf(scale: float) -> np.ndarray:
    weights = np.exp(-np.abs(np.arange(-WIDTH, WIDTH + 1.0)) / scale)
    return weights / weights.sum()


def counts(sample: np.ndarray) -> np.ndarray:
    return np.bincount(sample + WIDTH, minlength=2 * WIDTH + 1)


@pytest.mark.parametrize("sigma2", [0.1, 0.3, 1, Fraction(7, 3), 400, 1234.5])
def test_discrete_gaussian_has_its_law(sigma2: Fraction | float, agrees: Callable[..., bool]) -> None:
    assert agrees(counts(discrete_gaussian(stream(1), sigma2, 100_000)), gaussian_pmf(float(sigma2)))


@pytest.mark.parametrize("scale", [0.2, 0.7, 1, Fraction(5, 2), 30])
def test_discrete_laplace_has_its_law(scale: Fraction | float, agrees: Callable[..., bool]) -> None:
    assert agrees(counts(discrete_laplace(stream(2), scale, 50_000)), laplace_pmf(float(scale)))


def test_a_scale_off_by_one_per_cent_is_rejected(agrees: Callable[..., bool]) -> None:
    gaussian = counts(discrete_gaussian(stream(3), 4, 600_000))
    assert agrees(gaussian, gaussian_pmf(4))
    assert not agrees(gaussian, gaussian_pmf(4 * 1.01**2))
    laplace = counts(discrete_laplace(stream(4), 2, 1_200_000))
    assert agrees(laplace, laplace_pmf(2))
    assert not agrees(laplace, laplace_pmf(2 * 1.01))


def test_a_large_gaussian_has_its_variance() -> None:
    """Relative error of the variance sqrt(2/n); 6 of them, false alarm 2e-9."""
    sample = discrete_gaussian(stream(5), 10**12, 20_000).astype(np.float64)
    assert abs((sample**2).mean() / 1e12 - 1.0) < 6 * math.sqrt(2 / 20_000)
    assert abs(sample.mean()) < 6 * 1e6 / math.sqrt(20_000)


def test_scales_too_small_to_leave_zero_give_zero() -> None:
    assert not discrete_gaussian(stream(6), 1e-300, 50).any()
    assert not discrete_laplace(stream(6), 1e-300, 50).any()


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-6, 1e6), st.integers(0, 40), st.integers(0, 2**32))
def test_any_scale_gives_integers_of_its_size(scale: float, size: int, seed: int) -> None:
    for sample in (
        discrete_gaussian(stream(seed), scale**2, size),
        discrete_laplace(stream(seed), scale, size),
    ):
        assert sample.dtype == np.int64
        assert sample.shape == (size,)
        assert (np.abs(sample) <= 60 * scale + 1).all()


def test_shapes() -> None:
    assert discrete_gaussian(stream(7), 2, (3, 4)).shape == (3, 4)
    assert discrete_laplace(stream(7), 2, ()).shape == ()


class Scripted(Stream):
    """A stream whose 64-bit words are given."""

    def __init__(self, *words: int) -> None:
        super().__init__("scripted", bytes(32), private=False)
        self.words = list(words)

    def uint64(self, size: int) -> np.ndarray:
        return np.array([self.words.pop(0) for _ in range(size)], dtype=np.uint64)


THIRD = 2**64 // 3  # 0.010101... in binary, again and again: the rest of 2^64 / 3 is 1/3


@pytest.mark.parametrize(
    ("words", "up"),
    [
        ([THIRD - 1], True),
        ([THIRD + 1], False),
        ([THIRD, THIRD - 1], True),
        ([THIRD, THIRD + 1], False),
        ([THIRD, THIRD, THIRD, THIRD - 1], True),
    ],
)
def test_a_coin_looks_at_more_bits_only_when_it_must(words: list[int], up: bool) -> None:
    scripted = Scripted(*words)
    assert _coins(scripted, [1], 3, np.zeros(1, dtype=np.intp)).tolist() == [up]
    assert not scripted.words


def test_certain_and_impossible_coins() -> None:
    one = np.zeros(1, dtype=np.intp)
    assert _coins(Scripted(2**64 - 1, 2**64 - 1, 5), [7], 7, one).tolist() == [True]
    assert _coins(Scripted(0, 1), [0], 7, one).tolist() == [False]


@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(7, 4), Fraction(3)])
def test_exponential_coins_have_their_odds(gamma: Fraction) -> None:
    """6 standard errors, false alarm 2e-9."""
    count, odds = 200_000, math.exp(-gamma)
    which = np.zeros(count, dtype=np.intp)
    up = _exponential_coins(stream(8), [gamma.numerator], gamma.denominator, which)
    assert abs(up.mean() - odds) <= 6 * math.sqrt(odds * (1 - odds) / count)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 2.0**100, Fraction(-1, 3)])
def test_bad_scales_are_named(value: Fraction | float) -> None:
    with pytest.raises(ValueError, match=r"^scale: must lie in"):
        discrete_laplace(stream(1), value, 1)
    with pytest.raises(ValueError, match=r"^sigma2: must lie in"):
        discrete_gaussian(stream(1), value, 1)


def test_unwieldy_fractions_are_named() -> None:
    with pytest.raises(ValueError, match=r"^scale: its numerator"):
        discrete_laplace(stream(1), Fraction(10**30, 3**40), 1)
