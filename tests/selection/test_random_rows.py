"""Random selection: uniform, distinct, and blind to the data."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.batches import GivenBatch, counts_of

import sparsedp as sdp
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection.random_rows import sample_distinct

SPACE = RowSpace(selectable=(TableShape("a", 10, 2), TableShape("b", 20, 3)))


@given(st.integers(0, 40), st.integers(0, 60), st.integers(0, 2**32))
def test_samples_are_distinct_and_in_range(size: int, count: int, seed: int) -> None:
    drawn = sample_distinct(NoiseSource(seed).selection, size, count)
    assert drawn.size == min(size, count)
    assert (np.diff(drawn) > 0).all()
    assert not drawn.size or (drawn[0] >= 0 and drawn[-1] < size)


@pytest.mark.parametrize(("size", "count"), [(7, 3), (7, 5), (5, 2)])
def test_every_subset_is_equally_likely(size: int, count: int) -> None:
    """Chi-square over all subsets, at 1e-8; both ways of drawing (by retries, by a permutation)."""
    stream, runs = NoiseSource(1).selection, 6000
    place = {subset: n for n, subset in enumerate(combinations(range(size), count))}
    found = np.zeros(len(place))
    for _ in range(runs):
        found[place[tuple(sample_distinct(stream, size, count).tolist())]] += 1
    assert stats.chisquare(found).pvalue > 1e-8
    weights = np.array([1.2 if 0 in subset else 1.0 for subset in place])
    assert stats.chisquare(found, runs * weights / weights.sum()).pvalue < 1e-3  # a fifth more is noticed


def test_a_huge_space_costs_only_the_sample() -> None:
    drawn = sample_distinct(NoiseSource(2).selection, 10**15, 100_000)
    assert drawn.size == 100_000
    assert stats.kstest(drawn / 10**15, "uniform").pvalue > 1e-8


def test_rows_do_not_depend_on_the_batch() -> None:
    rule = sdp.RandomSelection(rows=4, always_on_rows=5).rule(
        SPACE, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1
    )
    chosen = [
        rule.select(batch, NoiseSource(3).selection).rows.tolist()
        for batch in (GivenBatch(SPACE), GivenBatch(SPACE, counts_of(r1=9.0), counts_of(r1=9.0)))
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 4


def test_coordinates_name_the_rows_they_lie_in() -> None:
    rule = sdp.RandomSelection(coordinates=12).rule(
        SPACE, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=1
    )
    stream, found = NoiseSource(4).selection, np.zeros(80)
    for _ in range(2000):
        selected = rule.select(GivenBatch(SPACE), stream)
        assert selected.coordinates is not None
        found[selected.coordinates] += 1
        rows = np.where(
            selected.coordinates < 20, selected.coordinates // 2, 10 + (selected.coordinates - 20) // 3
        )
        assert selected.rows.tolist() == np.unique(rows).tolist()
    # Each coordinate is drawn with probability 12/80: chi-square with the finite-population factor, at 1e-8.
    expected = 2000 * 12 / 80
    assert np.sum((found - expected) ** 2) / (expected * (1 - 12 / 80) * 80 / 79) < stats.chi2.isf(1e-8, 79)
