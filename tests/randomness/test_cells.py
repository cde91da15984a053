"""The laws of the samplers, from their tables exactly and from samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from sparsedp.randomness import NoiseSource, RoundedGaussian, Stream, rounded_gaussian
from sparsedp.randomness.alias import wide_alias_columns
from sparsedp.randomness.cells import (
    CHUNK,
    LARGEST_STD,
    SMALLEST_STD,
    SPAN,
    CellSampler,
    TwoSidedGeometric,
    height_at,
    two_sided_geometric,
)
from sparsedp.randomness.keystream import Keystream

MANTISSAS = [1.0, 1.0001, 1.37, 1.75, 1.99999]
STDS = [SMALLEST_STD, *(2.0**30 * m for m in MANTISSAS), 1.3 * 2.0**45, LARGEST_STD]


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).noise


def cell_masses(sampler: CellSampler) -> tuple[list[Fraction], Fraction]:
    """Of each cell at the first look, one sign, read off the columns; and of a second look."""
    columns, capacity = sampler.thresholds.size, 1 << 13
    masses = [Fraction(0)] * columns
    for threshold, (own, alias) in zip(
        sampler.thresholds.tolist(), sampler.cells.reshape(-1, 2).tolist(), strict=True
    ):
        masses[own] += Fraction(threshold, columns * capacity)
        masses[alias] += Fraction(capacity - threshold, columns * capacity)
    return [mass / 2 for mass in masses[:-1]], masses[-1]


def second_masses(sampler: CellSampler) -> list[Fraction]:
    """Of each cell at a second look, one sign, read off the wide columns."""
    high, low, alias = sampler.wide_columns
    masses = [Fraction(0)] * high.size
    for column, (h, lo, other) in enumerate(zip(high.tolist(), low.tolist(), alias.tolist(), strict=True)):
        threshold = (h << 64) | lo
        masses[column] += Fraction(threshold, high.size << 128)
        masses[other] += Fraction((1 << 128) - threshold, high.size << 128)
    return [mass / 2 for mass in masses[: sampler.tops.size]]


def magnitude(k: int) -> int:
    return k if k >= 0 else -1 - k


def above(sampler: CellSampler, k: int) -> float:
    """What the height at k leaves above its rectangle, in the sampler's own float64."""
    m, sign = np.int64(magnitude(k)), np.int64(-1 if k < 0 else 0)
    height = height_at(m, sign, sampler.peak, 1.0 / sampler.scale, sampler.curvature, sampler.bell)
    return float(height - sampler.rectangles[m >> sampler.cell_bits])


def cell_truth(sampler: CellSampler, cell: int) -> mpmath.mpf:
    """The mass of a cell, half of both signs' together."""
    low, high = (mpmath.mpf(c << sampler.cell_bits) / mpmath.mpf(sampler.scale) for c in (cell, cell + 1))
    if sampler.bell:
        return (mpmath.erfc(low / mpmath.sqrt(2)) - mpmath.erfc(high / mpmath.sqrt(2))) / 2
    return (mpmath.exp(-low) - mpmath.exp(-high)) / 2


def truth(sampler: CellSampler, k: int) -> mpmath.mpf:
    """The probability that k ought to have."""
    s = mpmath.mpf(sampler.scale)
    if not sampler.bell:
        return -mpmath.expm1(-1 / s) * mpmath.exp(-magnitude(k) / s) / 2
    low, high = ((abs(k) + sign * mpmath.mpf(1) / 2) / s / mpmath.sqrt(2) for sign in (-1, 1))
    return (mpmath.erfc(low) - mpmath.erfc(high)) / 2  # by the upper tail, which has all its digits


def exact_probability(sampler: CellSampler) -> Callable[[int], mpmath.mpf]:
    """P(k), summed over the ways in which the sampler can decide for k."""
    first, again = cell_masses(sampler)
    second = second_masses(sampler)
    # The share of looks that end. Over the cells of both signs the heights add up to their mass.
    ends = mpmath.mpf(0)
    for cell, mass in enumerate(second):
        left = cell_truth(sampler, cell) * 2**25 - mpmath.mpf(sampler.rectangles[cell])
        ends += 2 * mpf(mass) * left / mpmath.mpf(sampler.tops[cell] - sampler.rectangles[cell])

    def probability(k: int) -> mpmath.mpf:
        cell = magnitude(k) >> sampler.cell_bits
        left, most = above(sampler, k), sampler.tops[cell] - sampler.rectangles[cell]
        assert 0 <= left <= most * (1 + 2.0**-40) + sampler.peak * 2.0**-50
        at_first = first[cell] if cell < len(first) else Fraction(0)
        at_second = mpf(again) * mpf(second[cell]) * mpmath.mpf(left) / mpmath.mpf(most) / ends
        return (mpf(at_first) + at_second) / (1 << sampler.cell_bits)

    return probability


def mpf(value: Fraction) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


def samplers() -> list[CellSampler]:
    return [*map(RoundedGaussian, STDS), TwoSidedGeometric(24), TwoSidedGeometric(44)]


@pytest.mark.parametrize("sampler", samplers(), ids=lambda s: f"{type(s).__name__}-{s.scale:.6g}")
def test_every_probability_is_right_to_2_to_the_minus_44(sampler: CellSampler) -> None:
    """At first, last and inner integers of cells, both signs, from the centre to the end of the reach."""
    points, cells = 1 << sampler.cell_bits, sampler.tops.size
    generator = np.random.default_rng(1)
    chosen = sorted({0, 1, 2, cells - 1, *generator.integers(0, cells - 1, 60).tolist()})
    with mpmath.workdps(60):
        probability = exact_probability(sampler)
        places = [cell * points + place for cell in chosen for place in (0, 1, points // 3, points - 1)]
        worst = max(abs(probability(k) / truth(sampler, k) - 1) for m in places for k in (m, -1 - m))
        assert worst < mpmath.mpf(2) ** -44


@pytest.mark.parametrize("sampler", samplers(), ids=lambda s: f"{type(s).__name__}-{s.scale:.6g}")
def test_nothing_is_drawn_beyond_a_tail_of_2_to_the_minus_80(sampler: CellSampler) -> None:
    reach = sampler.tops.size * 2.0**sampler.cell_bits / sampler.scale
    assert (2 * stats.norm.sf(reach) < 2.0**-99) if sampler.bell else (math.exp(-reach) < 2.0**-92)


def test_the_check_of_probabilities_notices_a_wrong_table() -> None:
    sampler = RoundedGaussian(SMALLEST_STD)
    sampler.wide_columns = (sampler.wide_columns[0] // np.uint64(2), *sampler.wide_columns[1:])
    with mpmath.workdps(60):
        probability = exact_probability(sampler)
        k = 9 * int(SMALLEST_STD)
        assert abs(probability(k) / truth(sampler, k) - 1) > 2.0**-20


def test_rectangles_lie_below_the_heights_and_are_what_the_first_look_draws() -> None:
    for sampler in samplers():
        masses, again = cell_masses(sampler)
        for cell, mass in enumerate(masses):
            n = sampler.rectangles[cell] if cell < sampler.tops.size else 0.0
            assert mass == Fraction(int(n), 1 << 25)
        assert 2 * sum(masses) + again == 1
        assert 0 < again < Fraction(1, 100)
        edges = np.arange(1, sampler.tops.size + 1) * 2.0**sampler.cell_bits / sampler.scale
        assert np.all(
            sampler.rectangles <= sampler.peak * np.exp(-0.5 * edges**2 if sampler.bell else -edges)
        )


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


@pytest.mark.parametrize("sampler", samplers()[::3], ids=lambda s: f"{type(s).__name__}-{s.scale:.6g}")
def test_a_second_look_decides_by_all_of_its_words(sampler: CellSampler) -> None:
    """Column, threshold of 128 bits, place, sign and acceptance, each at the border of its decision."""
    high, low, alias = sampler.wide_columns
    generator, decided = np.random.default_rng(2), 0
    for column in generator.integers(0, high.size, 300).tolist():
        threshold = (int(high[column]) << 64) | int(low[column])
        for number, cell in ((threshold - 1, column), (threshold, int(alias[column]))):
            if not 0 <= number < 2**128 - 1 or cell >= sampler.tops.size:
                continue
            place, sign = int(generator.integers(0, 1 << sampler.cell_bits)), int(generator.integers(0, 2))
            m = (cell << sampler.cell_bits) | place
            k = -1 - m if sign else m
            share = above(sampler, k) / float(sampler.tops[cell] - sampler.rectangles[cell])
            for factor, accepted in ((1 - 1e-6, 1), (1 + 1e-6, 0)):
                last = min(int(share * factor * 2.0**64), 2**64 - 1)
                if share * factor >= 1.0:
                    continue
                word = column | (place << 12) | (sign << 63)
                words = np.array([word, number >> 64, number & (2**64 - 1), last], dtype=np.uint64)
                out = np.full(1, 12345, dtype=np.int64)
                assert sampler._second_look(np.zeros(1, dtype=np.int64), words, out) == accepted
                assert out[0] == (k if accepted else 12345)
                decided += 1
    assert decided > 100


def test_second_looks_have_their_own_law_and_both_signs(agrees: Callable[..., bool]) -> None:
    """Far fewer first looks: rectangles of nothing. All draws are then second looks."""
    sampler = RoundedGaussian(SMALLEST_STD)
    sampler.rectangles = np.zeros_like(sampler.rectangles)
    only = RoundedGaussian.__new__(RoundedGaussian)
    only.__dict__.update(sampler.__dict__)
    only.thresholds = np.zeros_like(sampler.thresholds)
    only.cells = np.full_like(sampler.cells, sampler.thresholds.size - 1)
    only.wide_columns = wide_alias_columns(sampler.tops, 12)
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
    first, second, sampler = stream(6), stream(6), rounded_gaussian(1.5 * 2.0**25)
    a, b = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    sampler.fill(a, first)
    sampler.fill(b, second, threads)
    assert np.array_equal(a, b)
    assert first.state() == second.state()
    spans, rest = divmod(size, SPAN)
    assert first.state()["position"] == 8 * (spans * sampler.words_of(SPAN) + sampler.words_of(rest))


def test_a_seed_gives_these_numbers() -> None:
    out = np.empty(100_000, dtype="<i8")
    rounded_gaussian(2.0**30).fill(out, stream(7))
    assert hashlib.sha256(out.tobytes()).hexdigest()[:16] == "4be4b367c10b1ce6"


@pytest.mark.parametrize("looks", [1, 8])
def test_second_looks_for_which_no_word_is_left_look_elsewhere(
    looks: int, uniform_on_unit: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With next to no spare words second looks come from a key of their own; the law is the same."""
    sampler, places, branch = TwoSidedGeometric(44), [], Keystream.branch
    monkeypatch.setattr(sampler, "_spare", lambda size: 4 * looks)
    monkeypatch.setattr(Keystream, "branch", lambda *args: (places.append(args[2]), branch(*args))[1])
    out = np.empty(300_000, dtype=np.int64)
    sampler.fill(out, stream(14))
    assert len(places) == len(set(places)) == -(-out.size // CHUNK)
    assert uniform_on_unit(stats.laplace.cdf((out + 0.5) * 2.0**-44))


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


def test_the_geometric_law_and_its_scale(uniform_on_unit: Callable[..., bool]) -> None:
    out = np.empty(2_000_000, dtype=np.int64)
    two_sided_geometric(44).fill(out, stream(13))
    sample = (out + 0.5) * 2.0**-44
    assert uniform_on_unit(stats.laplace.cdf(sample))
    assert not uniform_on_unit(stats.laplace.cdf(sample / 1.01))
    assert not uniform_on_unit(stats.laplace.cdf(sample * 1.01))


@pytest.mark.parametrize("std", [SMALLEST_STD * 0.999, LARGEST_STD * 1.001, math.nan, math.inf, -1.0])
def test_a_standard_deviation_out_of_range_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="std_cells: must lie in"):
        RoundedGaussian(std)


def test_the_error_budget_that_the_docs_state() -> None:
    """2 h sqrt(2 N ln(1/delta')) + 0.8 h T sqrt(d) / sigma for 1e5 steps of 1e6 coordinates."""
    h, steps, coordinates = 2.0**-44, 1e5, 1e6
    spread = 2 * h * math.sqrt(2 * steps * coordinates * math.log(1e12))
    drift = 0.8 * h * steps * math.sqrt(coordinates)
    assert spread == pytest.approx(2.7e-7, rel=0.02)
    assert drift == pytest.approx(4.5e-6, rel=0.02)
    # How far two shifted laws differ: the sum of |p - q| is at most 0.8 |shift| / s.
    for shift in (0.01, 0.1, 1.0, 3.0):
        assert 2 * (2 * stats.norm.cdf(shift / 2) - 1) <= 0.8 * shift
