"""The law of the lattice sampler, from its tables exactly and from samples; the release on a lattice."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from sparsedp.randomness import (
    NoiseSource,
    RoundedGaussian,
    Stream,
    lattice_of,
    release_on_lattice,
    rounded_gaussian,
    unit_gaussian,
)
from sparsedp.randomness import lattice as lattice_module
from sparsedp.randomness.lattice import CHUNK, LARGEST_STD, SMALLEST_STD, SPAN

MANTISSAS = [1.0, 1.0001, 1.37, 1.75, 1.99999]
STDS = [SMALLEST_STD, *(2.0**30 * m for m in MANTISSAS), 1.3 * 2.0**45, LARGEST_STD]


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


def cell_masses(sampler: RoundedGaussian) -> tuple[list[Fraction], Fraction]:
    """Of each cell at the first look, one sign, read off the columns; and of a second look."""
    columns, capacity = sampler.thresholds.size, 1 << 13
    masses = [Fraction(0)] * columns
    for threshold, (own, alias) in zip(
        sampler.thresholds.tolist(), sampler.cells.reshape(-1, 2).tolist(), strict=True
    ):
        masses[own] += Fraction(threshold, columns * capacity)
        masses[alias] += Fraction(capacity - threshold, columns * capacity)
    return [mass / 2 for mass in masses[:-1]], masses[-1]


def second_masses(sampler: RoundedGaussian) -> list[Fraction]:
    """Of each cell at a second look, one sign, read off the wide columns."""
    high, low, alias = sampler.wide_columns
    masses = [Fraction(0)] * high.size
    for column, (h, lo, other) in enumerate(zip(high.tolist(), low.tolist(), alias.tolist(), strict=True)):
        threshold = (h << 64) | lo
        masses[column] += Fraction(threshold, high.size << 128)
        masses[other] += Fraction((1 << 128) - threshold, high.size << 128)
    return [mass / 2 for mass in masses[: sampler.tops.size]]


def above(sampler: RoundedGaussian, k: int) -> float:
    """What the density at k leaves above its rectangle, in float64 as the sampler computes it."""
    x = np.float64(k) * (1.0 / sampler.std_cells)
    return float(sampler.peak * np.exp(-0.5 * x * x) - sampler.rectangles[cell_of(sampler, k)])


def cell_of(sampler: RoundedGaussian, k: int) -> int:
    return (k if k >= 0 else -1 - k) >> sampler.cell_bits


def exact_probability(sampler: RoundedGaussian) -> Callable[[int], mpmath.mpf]:
    """P(Z = k), summed over the ways in which the sampler can decide for k."""
    s, points = mpmath.mpf(sampler.std_cells), 1 << sampler.cell_bits
    first, again = cell_masses(sampler)
    second = second_masses(sampler)

    def accepted(cell: int, k: int) -> mpmath.mpf:
        left, most = above(sampler, k), sampler.tops[cell] - sampler.rectangles[cell]
        assert 0 <= left <= most * (1 + 2.0**-40) + sampler.peak * 2.0**-50
        return mpmath.mpf(left) / mpmath.mpf(most)

    # The share of looks that end: over a cell the densities add up to its mass, to a relative 2^-41.
    ends = mpmath.mpf(0)
    for cell, mass in enumerate(second):
        density = mpmath.ncdf((cell + 1) * points / s) - mpmath.ncdf(cell * points / s)
        left = density * mpmath.mpf(2) ** 25 - mpmath.mpf(sampler.rectangles[cell])
        ends += 2 * mpf(mass) * left / mpmath.mpf(sampler.tops[cell] - sampler.rectangles[cell])

    def probability(k: int) -> mpmath.mpf:
        cell = cell_of(sampler, k)
        at_first = first[cell] if cell < len(first) else Fraction(0)
        return (mpf(at_first) + mpf(again) * mpf(second[cell]) * accepted(cell, k) / ends) / points

    return probability


def mpf(value: Fraction) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


@pytest.mark.parametrize("std", STDS)
def test_every_probability_is_right_to_2_to_the_minus_40(std: float) -> None:
    """At first, last and inner integers of cells, both signs, from the centre to 11.5 standard deviations."""
    sampler = RoundedGaussian(std)
    points, cells = 1 << sampler.cell_bits, sampler.tops.size
    generator = np.random.default_rng(1)
    chosen = sorted({0, 1, 2, cells - 2, *generator.integers(0, cells - 1, 60).tolist()})
    with mpmath.workdps(60):
        probability, s = exact_probability(sampler), mpmath.mpf(std)
        worst = mpmath.mpf(0)
        for cell in chosen:
            for place in (0, 1, points // 3, points - 1):
                for k in (cell * points + place, -1 - (cell * points + place)):
                    # By the upper tail, which has all its digits.
                    low, high = (abs(k) - mpmath.mpf(1) / 2) / s, (abs(k) + mpmath.mpf(1) / 2) / s
                    truth = (mpmath.erfc(low / mpmath.sqrt(2)) - mpmath.erfc(high / mpmath.sqrt(2))) / 2
                    worst = max(worst, abs(probability(k) / truth - 1))
        assert worst < mpmath.mpf(2) ** -40


@pytest.mark.parametrize("std", STDS)
def test_nothing_is_drawn_beyond_a_tail_of_2_to_the_minus_99(std: float) -> None:
    sampler = RoundedGaussian(std)
    reach = sampler.tops.size * 2.0**sampler.cell_bits / std
    assert reach >= 11.5
    assert 2 * stats.norm.sf(reach) < 2.0**-99


def test_the_check_of_probabilities_notices_a_wrong_table() -> None:
    sampler = RoundedGaussian(SMALLEST_STD)
    sampler.wide_columns = (sampler.wide_columns[0] // np.uint64(2), *sampler.wide_columns[1:])
    with mpmath.workdps(60):
        probability = exact_probability(sampler)
        k, s = 9 * int(SMALLEST_STD), mpmath.mpf(SMALLEST_STD)
        truth = mpmath.npdf(k / s) / s
        assert abs(probability(k) / truth - 1) > 2.0**-20


def test_rectangles_lie_below_the_density_and_are_what_the_first_look_draws() -> None:
    for std in STDS:
        sampler = RoundedGaussian(std)
        masses, again = cell_masses(sampler)
        for cell, mass in enumerate(masses):
            n = sampler.rectangles[cell] if cell < sampler.tops.size else 0.0
            assert mass == Fraction(int(n), 1 << 25)
        assert 2 * sum(masses) + again == 1
        assert 0 < again < Fraction(1, 250)
        edges = np.arange(1, sampler.tops.size + 1) * 2.0**sampler.cell_bits / std
        assert np.all(sampler.rectangles <= sampler.peak * np.exp(-0.5 * edges**2))


@pytest.mark.parametrize("std", [SMALLEST_STD, 1.37 * 2.0**33, LARGEST_STD])
def test_distribution_and_its_scale(std: float, uniform_on_unit: Callable[..., bool]) -> None:
    out = np.empty(2_000_000, dtype=np.int64)
    rounded_gaussian(std).fill(out, stream(1))
    sample = out / std
    assert uniform_on_unit(stats.norm.cdf(sample))
    assert not uniform_on_unit(stats.norm.cdf(sample / 1.01))
    assert not uniform_on_unit(stats.norm.cdf(sample * 1.01))


def test_the_standard_deviation_to_a_third_of_a_percent() -> None:
    """8 million draws: a standard error of 0.025%, six of them 0.15%; 0.3% off is 12 away."""
    out = np.empty(8_000_000, dtype=np.int64)
    rounded_gaussian(1.1 * 2.0**26).fill(out, stream(2))
    z = out / (1.1 * 2.0**26)
    tolerance = 6 / math.sqrt(2 * z.size)
    assert tolerance < 0.0016
    assert abs(z.std() - 1) < tolerance
    assert abs(z.mean()) < 6 / math.sqrt(z.size)
    for power, moment, spread in ((4, 3.0, 96.0), (6, 15.0, 10170.0)):
        assert abs(np.mean(z**power) - moment) < 6 * math.sqrt(spread / z.size)


def test_places_in_a_cell_and_low_bits_are_uniform(agrees: Callable[..., bool]) -> None:
    sampler = rounded_gaussian(1.1 * 2.0**26)
    out = np.empty(2_000_000, dtype=np.int64)
    sampler.fill(out, stream(3))
    for shift in (0, sampler.cell_bits - 12, sampler.cell_bits - 6):
        counts = np.bincount((out >> shift) & 63, minlength=64)
        assert agrees(counts, np.full(64, 1 / 64))


def test_second_looks_have_their_own_law_and_both_signs(agrees: Callable[..., bool]) -> None:
    """Far fewer first looks: rectangles of nothing. All draws are then second looks."""
    sampler = RoundedGaussian(SMALLEST_STD)
    sampler.rectangles = np.zeros_like(sampler.rectangles)
    only = RoundedGaussian.__new__(RoundedGaussian)
    only.__dict__.update(sampler.__dict__)
    only.thresholds = np.zeros_like(sampler.thresholds)
    only.cells = np.full_like(sampler.cells, sampler.thresholds.size - 1)
    only.wide_columns = lattice_module.wide_alias_columns(sampler.tops, 12)
    out = np.empty(200_000, dtype=np.int64)
    only.fill(out, stream(4))
    edges = np.linspace(-4, 4, 41)
    counts, _ = np.histogram(out / SMALLEST_STD, np.concatenate([[-20], edges, [20]]))
    law = np.diff(stats.norm.cdf(np.concatenate([[-20], edges, [20]])))
    assert agrees(counts, law)


def test_neighbours_are_uncorrelated_and_so_are_their_squares() -> None:
    out = np.empty(2_000_000, dtype=np.int64)
    rounded_gaussian(2.0**30).fill(out, stream(5))
    z = out * 2.0**-30
    for values in (z, z**2 - 1):
        for lag in (1, 2, 7, 64, CHUNK):
            correlation = np.mean(values[:-lag] * values[lag:]) / np.mean(values**2)
            assert abs(correlation) < 6.5 / math.sqrt(z.size)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK + 1, SPAN, 2 * SPAN + 17])
@pytest.mark.parametrize("threads", [2, 3])
def test_values_and_bytes_do_not_depend_on_threads(size: int, threads: int) -> None:
    first, second = stream(6), stream(6)
    a, b = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    rounded_gaussian(1.5 * 2.0**25).fill(a, first)
    rounded_gaussian(1.5 * 2.0**25).fill(b, second, threads)
    assert np.array_equal(a, b)
    assert first.state() == second.state()
    assert first.state()["position"] == 8 * size


def test_a_seed_gives_these_numbers() -> None:
    out = np.empty(100_000, dtype="<i8")
    rounded_gaussian(2.0**30).fill(out, stream(7))
    assert hashlib.sha256(out.tobytes()).hexdigest()[:16] == "4bc88e61c48dc0c2"


def test_calls_do_not_share_the_words_of_second_looks() -> None:
    """Two calls in a row, and the same two from a restored state."""
    one, sampler = stream(8), rounded_gaussian(2.0**30)
    a, b = np.empty((2, 50_000), dtype=np.int64)
    state = one.state()
    sampler.fill(a, one)
    sampler.fill(b, one)
    assert np.intersect1d(a, b).size <= 20  # 2.5e9 pairs on 2^32 integers or so: about one
    again = np.empty(50_000, dtype=np.int64)
    one.restore(state)
    sampler.fill(again, one)
    assert np.array_equal(a, again)


@pytest.mark.parametrize("std", [SMALLEST_STD * 0.999, LARGEST_STD * 1.001, math.nan, math.inf, -1.0])
def test_a_standard_deviation_out_of_range_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="std_cells: must lie in"):
        RoundedGaussian(std)


# The lattice


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


# The release


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


def test_unit_gaussians_are_whole_multiples(uniform_on_unit: Callable[..., bool]) -> None:
    z = unit_gaussian(stream(12), (1000, 500))
    assert z.shape == (1000, 500)
    cells = z * 2.0**44
    assert np.array_equal(cells, np.rint(cells))
    assert uniform_on_unit(stats.norm.cdf(z).ravel())
    assert not uniform_on_unit(stats.norm.cdf(z.ravel() * 1.02))
