import itertools
import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparsedp.randomness import NoiseSource, Stream, bernoulli_positions


def stream(seed: int) -> Stream:
    return NoiseSource(seed=seed).sampling


def gap_counts(gaps: np.ndarray, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Gaps in 60 cells of about equal chance under the geometric law, and these chances."""
    edges = np.unique(stats.geom.ppf(np.linspace(0, 1, 61)[1:-1], probability))
    chances = np.diff(np.concatenate([[0.0], stats.geom.cdf(edges, probability), [1.0]]))
    return np.bincount(np.searchsorted(edges, gaps), minlength=edges.size + 1), chances


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_every_outcome_has_its_probability(probability: float, agrees: Callable[..., bool]) -> None:
    """All 2^4 outcomes on four positions: each coin is right and they are independent."""
    source = stream(1)
    counts = np.zeros(16, dtype=np.int64)
    for _ in range(8000):
        counts[sum(1 << i for i in bernoulli_positions(source, 4, probability).tolist())] += 1
    outcomes = [
        math.prod(probability if bit else 1 - probability for bit in bits[::-1])
        for bits in itertools.product((0, 1), repeat=4)
    ]
    assert agrees(counts, np.array(outcomes))


@pytest.mark.parametrize("probability", [0.3, 2.0**-6, 0.004, 1e-6, 1e-12])
def test_gaps_are_geometric(probability: float, agrees: Callable[..., bool]) -> None:
    """Whether a gap is drawn in one or as blocks and a rest; a probability off by 1% or 2% is rejected."""
    size = min(10**18, round(1e6 / probability))
    hits = bernoulli_positions(stream(2), size, probability)
    gaps = np.diff(hits, prepend=-1)
    assert agrees(*gap_counts(gaps, probability))
    assert not agrees(*gap_counts(gaps, 1.02 * probability))
    assert not agrees(*gap_counts(gaps, 0.98 * probability))
    assert abs(hits.size - size * probability) < 6 * math.sqrt(hits.size)
    assert abs(hits.size - size * probability * 1.01) > 6 * math.sqrt(hits.size)


def test_the_number_of_hits_is_binomial(agrees: Callable[..., bool]) -> None:
    source, size, probability = stream(3), 10**18, 3e-17
    counts = [bernoulli_positions(source, size, probability).size for _ in range(8000)]
    law = stats.poisson(size * probability)  # the binomial to 1e-15
    seen = np.bincount(counts, minlength=100)[:100]
    assert agrees(seen, law.pmf(np.arange(100)))
    assert not agrees(seen, stats.poisson(1.03 * size * probability).pmf(np.arange(100)))


def test_every_position_of_a_huge_range_can_be_hit(agrees: Callable[..., bool]) -> None:
    """The last bits of long gaps are uniform; taken from one 53-bit uniform they would all be zero."""
    probability, source = 1e-17, stream(4)
    hits = np.concatenate([bernoulli_positions(source, 2**60, probability) for _ in range(20_000)])
    assert agrees(np.bincount(hits % 64, minlength=64), np.full(64, 1 / 64))
    plain = np.floor(np.log(stream(4).uniform(200_000)) / math.log1p(-probability)).astype(np.int64) + 1
    assert not agrees(np.bincount(plain % 64, minlength=64), np.full(64, 1 / 64))


def test_hits_are_spread_evenly(uniform_on_unit: Callable[..., bool]) -> None:
    size = 10**15
    assert uniform_on_unit(bernoulli_positions(stream(5), size, 2e-10) / size)


@pytest.mark.parametrize(
    ("size", "probability", "expected"),
    [(0, 0.5, []), (5, 0.0, []), (5, 1.0, [0, 1, 2, 3, 4]), (0, 1.0, []), (10**18, 0.0, [])],
)
def test_edges(size: int, probability: float, expected: list[int]) -> None:
    hits = bernoulli_positions(stream(6), size, probability)
    assert hits.dtype == np.int64
    assert hits.tolist() == expected


@pytest.mark.parametrize("probability", [5e-324, 1e-300, 1e-30])
def test_hopeless_odds_hit_nothing(probability: float) -> None:
    assert bernoulli_positions(stream(7), 10**18, probability).size == 0


def test_near_certain_odds_hit_nearly_all() -> None:
    assert bernoulli_positions(stream(8), 1000, 1.0 - 2.0**-53).tolist() == list(range(1000))


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 10**18),
    st.floats(0.0, 1.0),
    st.floats(0.0, 500.0),
    st.integers(0, 2**32),
)
def test_hits_are_sorted_positions(size: int, probability: float, expected: float, seed: int) -> None:
    probability = min(probability, expected / max(size, 1))
    hits = bernoulli_positions(stream(seed), size, probability)
    assert hits.dtype == np.int64
    assert (np.diff(hits) > 0).all()
    assert hits.size == 0 or (hits[0] >= 0 and hits[-1] < size)


def test_memory_follows_the_hits() -> None:
    tracemalloc.start()
    hits = bernoulli_positions(stream(9), 10**18, 1e-15)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 700 < hits.size < 1300
    assert peak < 1_000_000


def test_many_batches_join_up() -> None:
    hits = bernoulli_positions(stream(10), 10**7, 0.35)
    assert abs(hits.size - 3.5e6) < 6 * math.sqrt(10**7 * 0.35 * 0.65)
    assert (np.diff(hits) > 0).all()


@pytest.mark.parametrize("size", [-1, 2**60 + 1])
def test_bad_sizes_are_named(size: int) -> None:
    with pytest.raises(ValueError, match=r"^size: must lie in"):
        bernoulli_positions(stream(1), size, 0.5)


@pytest.mark.parametrize("probability", [-0.1, 1.1, math.nan, math.inf])
def test_bad_probabilities_are_named(probability: float) -> None:
    with pytest.raises(ValueError, match=r"^probability: must lie in \[0, 1\]"):
        bernoulli_positions(stream(1), 10, probability)
