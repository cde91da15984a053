"""Selection by the sparse vector technique."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from support.batches import GivenBatch, counts_of, one_table

import sparsedp as sdp
from sparsedp.accounting import epsilon_of
from sparsedp.accounting.events import ComposedDpEvent, GaussianDpEvent, SparseVectorDpEvent
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection import Rule


def rule_of(space: RowSpace, rows: int, *, epsilon: float, threshold: float, cap: float = 1.0) -> Rule:
    selection = sdp.SparseVectorSelection(rows, epsilon, cap, threshold)
    return selection.rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10.0)


def test_with_next_to_no_noise_the_first_rows_above_the_threshold_are_found() -> None:
    """Exactly so many, in the order of their numbers; the search does not go on for one more."""
    space = one_table(10**9)
    scores = counts_of(r5=0.5, r9=0.1, r700=0.6, r10000=0.9, r99999=0.95)
    rule = rule_of(space, 3, epsilon=1e4, threshold=0.3)
    found = rule.select(GivenBatch(space, given_scores=scores), NoiseSource(1).selection)
    assert found.rows.tolist() == [5, 700, 10000]


def test_scores_are_capped() -> None:
    space = one_table(2000)
    rule = rule_of(space, 3, epsilon=1e5, threshold=0.3, cap=0.2)
    batch = GivenBatch(space, given_scores=counts_of(r5=0.5))
    assert rule.select(batch, NoiseSource(1).selection).rows.size == 0


def test_the_noise_is_in_units_of_one_example() -> None:
    """One row against a threshold 0.1 away: P(Laplace(4 s/eps) - Laplace(2 s/eps) >= 0.1), s = clip / B = 0.1;
    binomial at 1e-8."""
    space, runs, epsilon = one_table(1), 4000, 2.0
    rule = rule_of(space, 1, epsilon=epsilon, threshold=0.3)
    batch = GivenBatch(space, given_scores=counts_of(r0=0.2))
    stream = NoiseSource(4).selection
    found = sum(rule.select(batch, stream).rows.size for _ in range(runs))

    def tail(wide: float, narrow: float) -> float:
        """P(Laplace(wide) + Laplace(narrow) >= 0.1)."""
        terms = wide**2 * math.exp(-0.1 / wide) - narrow**2 * math.exp(-0.1 / narrow)
        return terms / (2 * (wide**2 - narrow**2))

    assert stats.binomtest(found, runs, tail(0.2, 0.1)).pvalue > 1e-8
    assert stats.binomtest(found, runs, tail(0.02, 0.01)).pvalue < 1e-8  # without the division by B


def test_a_round_costs_the_stated_epsilon() -> None:
    """Half on the threshold, half on the row: Delta / (2 Delta/eps) + 2 Delta / (4 Delta/eps)."""
    selection = sdp.SparseVectorSelection(rows=3, selection_epsilon=0.4, score_cap=1.0, threshold=0.1)
    event = selection.step_event(2.0)
    assert event == ComposedDpEvent([SparseVectorDpEvent(3, 5.0, 10.0), GaussianDpEvent(2.0)])
    search = SparseVectorDpEvent(1, 5.0, 10.0)
    assert epsilon_of([(search, 1)], 1e-12) == pytest.approx(0.4, rel=1e-2)


def test_single_coordinates_are_found_with_the_rows_that_they_lie_in() -> None:
    """Width 2: coordinate 700 lies in row 350. The price is that of as many rounds as coordinates."""
    space = one_table(10**9)
    scores = counts_of(r5=0.5, r9=0.1, r700=0.6, r701=0.9, r99999=0.95)
    selection = sdp.SparseVectorSelection(None, 1e4, 1.0, 0.3, coordinates=3)
    rule = selection.rule(space, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10.0)
    found = rule.select(GivenBatch(space, given_scores=scores), NoiseSource(1).selection)
    assert found.coordinates is not None
    assert found.coordinates.tolist() == [5, 700, 701]
    assert found.rows.tolist() == [2, 350]
    assert selection.step_event(2.0) == ComposedDpEvent(
        [SparseVectorDpEvent(3, 2e-4, 4e-4), GaussianDpEvent(2.0)]
    )


def test_untouched_rows_may_be_found_too() -> None:
    space = one_table(10**6)
    rule = rule_of(space, 5, epsilon=0.1, threshold=0.0)
    rows = rule.select(GivenBatch(space), NoiseSource(2).selection).rows
    assert rows.size == 5
    assert (np.diff(rows) > 0).all()
