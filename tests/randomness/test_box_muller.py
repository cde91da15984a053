import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparsedp.randomness import NoiseSource
from sparsedp.randomness.box_muller import (
    _COSINE,
    _FINE_BELOW,
    _SINE,
    BLOCK_PAIRS,
    _log_squares,
    _polynomial,
    _transform,
    fill_normals,
)
from sparsedp.randomness.keystream import Keystream


def keystream(seed: int) -> Keystream:
    return NoiseSource(seed=seed).noise.keystream


def normals(seed: int, count: int, threads: int = 1) -> np.ndarray:
    out = np.full(count, np.nan, dtype=np.float32)
    fill_normals(out, keystream(seed), threads)
    return out


class Forced(Keystream):
    """A keystream whose next words are given."""

    def __init__(self, radius: np.ndarray, angle: np.ndarray) -> None:
        super().__init__(bytes(32), private=False)
        self.words = np.concatenate([radius, angle]).astype("<i4")

    def fill(self, buffer: memoryview | bytearray) -> int:
        memoryview(buffer).cast("B")[:] = self.words.tobytes()
        return 0


def transformed(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    block = np.empty(2 * radius.size, dtype=np.float32)
    _transform(block, Forced(radius, angle), np.empty(2 * radius.size, dtype="<i4"), 1.0)
    return block.astype(np.float64).reshape(2, -1)


def test_distribution_and_its_scale(uniform_on_unit: Callable[..., bool]) -> None:
    sample = normals(1, 2_000_000).astype(np.float64)
    assert uniform_on_unit(stats.norm.cdf(sample))
    assert not uniform_on_unit(stats.norm.cdf(sample / 1.01))
    assert not uniform_on_unit(stats.norm.cdf(sample * 1.01))


def test_moments() -> None:
    """The first six, within 6 standard errors: false alarm below 2e-8 for all together."""
    sample, count = normals(2, 8_000_000).astype(np.float64), 8_000_000
    moments = {1: 0.0, 2: 1.0, 3: 0.0, 4: 3.0, 5: 0.0, 6: 15.0}
    for order, expected in moments.items():
        variance = math.prod(range(2 * order - 1, 0, -2)) - expected**2
        assert abs((sample**order).mean() - expected) < 6 * math.sqrt(variance / count)


@pytest.mark.parametrize("beyond", [3.0, 4.0, 4.5])
def test_tails(beyond: float) -> None:
    """On each side, a binomial count with false alarm 1e-9; a tail one per cent too wide at 3 is rejected."""
    sample = normals(3, 20_000_000)
    for side in (sample, -sample):
        count = int((side > beyond).sum())
        assert stats.binomtest(count, sample.size, stats.norm.sf(beyond)).pvalue > 1e-9
        if beyond == 3.0:
            assert stats.binomtest(count, sample.size, stats.norm.sf(3.0 / 1.01)).pvalue < 1e-9


def test_the_two_values_of_a_pair_are_independent(agrees: Callable[..., bool]) -> None:
    """Counts in 20 x 20 cells of equal chance, and those of radius against angle."""
    x, y = normals(4, 2 * BLOCK_PAIRS * 16).astype(np.float64).reshape(16, 2, BLOCK_PAIRS).transpose(1, 0, 2)
    angle = np.arctan2(y, x) / (2 * math.pi) + 0.5
    for u, v in ((stats.norm.cdf(x), stats.norm.cdf(y)), (np.exp(-(x**2 + y**2) / 2), angle)):
        cells, _, _ = np.histogram2d(u.ravel(), v.ravel(), bins=20, range=((0, 1), (0, 1)))
        assert cells.sum() == x.size
        assert agrees(cells.ravel().astype(np.int64), np.full(400, 1 / 400))


def test_neighbours_are_uncorrelated() -> None:
    sample = normals(5, 2_000_000).astype(np.float64)
    for values in (sample, sample**2 - 1.0):
        for lag in (1, 2, BLOCK_PAIRS, 2 * BLOCK_PAIRS):
            product = values[:-lag] * values[lag:]
            assert abs(product.mean()) < 6 * values.var() / math.sqrt(product.size)


def test_words_become_the_stated_radius_and_angle() -> None:
    rng = np.random.default_rng(1)
    radius = rng.integers(-(2**31), 2**31, 10_000)
    angle = rng.integers(-(2**31), 2**31, 10_000)
    radius = np.where(np.abs(radius) < 2**16, 2**16, radius)
    x, y = transformed(radius, angle)
    r = np.sign(radius) * np.sqrt(-2.0 * np.log(np.abs(radius) / 2.0**31))
    theta = angle / 2.0**31 * math.pi / 2
    # float32 arithmetic: near U = 1 the logarithm's argument carries 24 bits
    assert np.allclose(x, r * np.cos(theta), rtol=0, atol=3e-4)
    assert np.allclose(y, r * np.sin(theta), rtol=0, atol=3e-4)
    away = np.abs(radius) < 2**31 * 0.99
    assert np.allclose(x[away], (r * np.cos(theta))[away], rtol=0, atol=3e-6)
    assert np.allclose(y[away], (r * np.sin(theta))[away], rtol=0, atol=3e-6)


def test_the_polynomials_are_sine_and_cosine() -> None:
    u = np.linspace(-1.0, 1.0, 100_001, dtype=np.float32)
    value = _polynomial.py_func(_COSINE, u * u)
    assert np.abs(value - np.cos(u.astype(np.float64) * math.pi / 2)).max() < 2.5e-7
    value = _polynomial.py_func(_SINE, u * u)
    assert np.abs(value * u - np.sin(u.astype(np.float64) * math.pi / 2)).max() < 2.5e-7


def test_the_logarithm() -> None:
    """ln U^2 to 2e-7 of itself, or of one where it is small, for every size of U from the finest to 1."""
    rng = np.random.default_rng(7)
    words = np.concatenate(
        [rng.integers(1 << k, 2 << k, 2000) for k in range(12, 31)] + [[2**31 - 1, -(2**31)]]
    )
    found = np.empty(words.size, dtype=np.float32)
    _log_squares(words.astype(np.int32), found)
    units = words.astype(np.int32).astype(np.float32).astype(np.float64) * 2.0**-31
    expected = np.log(np.float32(units * units).astype(np.float64))
    assert (np.abs(found - expected) <= 3e-7 * np.maximum(np.abs(expected), 1e-30)).all()


def test_tiny_radius_words_are_refined_to_the_right_tail() -> None:
    """Given a magnitude below 2^12, r^2 / 2 exceeds 19 ln 2 by a standard exponential (KS, alarm 1e-9)."""
    rng = np.random.default_rng(2)
    radius = rng.integers(-_FINE_BELOW, _FINE_BELOW, 8192)
    x, y = transformed(radius, rng.integers(-(2**31), 2**31, 8192))
    excess = (x**2 + y**2) / 2 - 19 * math.log(2)
    assert stats.kstest(excess, stats.expon.cdf).pvalue > 1e-9
    assert stats.kstest(excess, stats.expon(scale=1.1).cdf).pvalue < 1e-9
    assert (x * np.sign(radius + 0.5) >= 0).all()


def test_the_tail_does_not_end_where_32_bits_do() -> None:
    zero = np.zeros(4096, dtype=np.int64)
    x, y = transformed(zero, np.random.default_rng(3).integers(-(2**31), 2**31, 4096))
    r = np.hypot(x, y)
    assert np.isfinite(r).all()
    assert r.min() > 6.5
    assert r.max() > 7.5
    excess = r**2 / 2 - 31 * math.log(2)
    assert stats.kstest(excess, stats.expon.cdf).pvalue > 1e-9


EXTREME = [
    0,
    1,
    -1,
    2,
    -2,
    _FINE_BELOW - 1,
    _FINE_BELOW,
    -_FINE_BELOW,
    2**30,
    2**31 - 1,
    -(2**31),
    -(2**31) + 1,
]


def test_no_words_give_a_value_that_is_not_finite() -> None:
    radius, angle = (grid.ravel() for grid in np.meshgrid(EXTREME, EXTREME))
    with np.errstate(all="raise", under="ignore"):
        values = transformed(radius, angle)
    assert np.isfinite(values).all()
    assert np.abs(values).max() < 11.6


@pytest.mark.parametrize("threads", [2, 3, 4, 7])
def test_threads_do_not_change_the_values(threads: int) -> None:
    count = 16 * 2 * BLOCK_PAIRS + 12_345
    one, several = keystream(6), keystream(6)
    a, b = np.empty((2, count), dtype=np.float32)
    fill_normals(a, one, 1)
    fill_normals(b, several, threads)
    assert np.array_equal(a, b)
    assert one.position == several.position == 8 * ((count + 1) // 2)
    assert one.take(16) == several.take(16)


def test_refined_values_do_not_depend_on_threads_either() -> None:
    """With 2^25 pairs some 60 are refined."""
    count = 1 << 24
    a, b = normals(7, count, 1), normals(7, count, 2)
    assert np.abs(a).max() > 5.0
    assert np.array_equal(a, b)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=5), st.integers(0, 100))
def test_a_resumed_keystream_continues_bit_for_bit(sizes: list[int], offset: int) -> None:
    first = keystream(8)
    first.take(offset)
    resumed = Keystream(first.key, first.position, private=False)
    for size in sizes:
        a, b = np.full((2, size), np.nan, dtype=np.float32)
        fill_normals(a, first, 1)
        fill_normals(b, resumed, 1)
        assert np.array_equal(a, b)
        assert np.isfinite(a).all()
        assert first.position == resumed.position
        resumed = Keystream(first.key, first.position, private=False)
