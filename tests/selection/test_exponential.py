"""Exponential selection: how many rows, their law, and how far one example moves a score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.batches import GivenBatch, counts_of, one_table, scores_of

import sparsedp as sdp
from sparsedp.accounting.events import BoundedRangeGaussianDpEvent
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowSpace
from sparsedp.selection import Rule

ROWS, DIM, CLIP, BATCH = 6, 3, 1.0, 4.0


def rule_of(space: RowSpace, *, rows: int = 4, epsilon: float = 1.0, cap: float = 0.1) -> Rule:
    selection = sdp.ExponentialSelection(rows, epsilon, cap)
    return selection.rule(space, noise_multiplier=1.0, max_grad_norm=CLIP, expected_batch_size=BATCH)


@pytest.mark.parametrize(("rows", "size"), [(1, 10**9), (7, 2000), (50, 60), (90, 60)])
def test_exactly_so_many_rows_are_drawn(rows: int, size: int) -> None:
    """Not one more, as the paper's loop would; all of them where there are no more."""
    space = one_table(size)
    batch = GivenBatch(space, given_scores=counts_of(r3=0.1, r8=0.02))
    stream = NoiseSource(1).selection
    for _ in range(20):
        drawn = rule_of(space, rows=rows).select(batch, stream).rows
        assert drawn.size == min(rows, size)
        assert (np.diff(drawn) > 0).all()


def test_a_draw_has_the_law_of_the_exponential_mechanism() -> None:
    """Weights exp(eps score / (2 Delta)) with Delta = min(S0, clip / B) = 0.1; chi-square at 1e-8."""
    space, runs = one_table(5), 4000
    rule = rule_of(space, rows=1, epsilon=3.0)
    batch = GivenBatch(space, given_scores=counts_of(r0=0.04, r2=0.08, r3=5.0))  # the last is capped at 0.1
    stream = NoiseSource(2).selection
    found = np.bincount([int(rule.select(batch, stream).rows[0]) for _ in range(runs)], minlength=5)

    def expected(epsilon: float) -> np.ndarray:
        weights = np.exp(epsilon * np.array([0.04, 0.0, 0.08, 0.1, 0.0]) / (2 * 0.1))
        return runs * weights / weights.sum()

    assert stats.chisquare(found, expected(3.0)).pvalue > 1e-8
    assert stats.chisquare(found, expected(6.0)).pvalue < 1e-8  # without the factor two


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch whose last example is the one that comes or goes; gradients of any size and direction."""
    size, width = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    numbers = st.sampled_from([0.0, 1e-6, 0.3, -1.0, 5.0, -1e4])
    directions = draw(st.lists(numbers, min_size=size * width * DIM, max_size=size * width * DIM))
    ids = draw(st.lists(st.integers(0, ROWS - 1), min_size=size * width, max_size=size * width))
    return torch.tensor(ids).view(size, width), torch.tensor(directions).view(size, width, DIM)


@settings(max_examples=80, deadline=None)
@given(neighbours(), st.sampled_from([0.05, 0.2, 10.0]))
def test_one_example_moves_each_score_by_at_most_the_stated_sensitivity(
    batch: tuple[torch.Tensor, torch.Tensor], cap: float
) -> None:
    ids, directions = batch
    rule = rule_of(one_table(ROWS, dim=DIM), cap=cap)
    allowed = min(cap, CLIP / BATCH)
    with_it = scores_of(rule, ids, directions)
    without = scores_of(rule, ids[:-1], directions[:-1]) if len(ids) > 1 else {}
    for row in range(ROWS):
        moved = abs(min(with_it.get(row, 0.0), cap) - min(without.get(row, 0.0), cap))
        assert moved <= allowed * (1 + 1e-6)


def test_the_bound_on_a_score_is_reached() -> None:
    """One example whose gradient lies in one row: the sensitivity is no larger than it must be."""
    rule = rule_of(one_table(ROWS, dim=DIM), cap=10.0)
    scores = scores_of(rule, torch.tensor([[2]]), torch.tensor([[[100.0, 0.0, 0.0]]]))
    assert scores[2] == pytest.approx(CLIP / BATCH, rel=2e-3)
    assert scores[2] <= CLIP / BATCH


@settings(max_examples=80, deadline=None)
@given(neighbours(), st.sampled_from([0.05, 0.2, 10.0]))
def test_one_example_moves_each_coordinate_by_at_most_the_stated_sensitivity(
    batch: tuple[torch.Tensor, torch.Tensor], cap: float
) -> None:
    ids, directions = batch
    rule = rule_of(one_table(ROWS, dim=DIM), cap=cap)
    allowed = min(cap, CLIP / BATCH)
    with_it = scores_of(rule, ids, directions, coordinates=True)
    without = scores_of(rule, ids[:-1], directions[:-1], coordinates=True) if len(ids) > 1 else {}
    for n in range(ROWS * DIM):
        moved = abs(min(with_it.get(n, 0.0), cap) - min(without.get(n, 0.0), cap))
        assert moved <= allowed * (1 + 1e-6)


def test_single_coordinates_are_drawn_with_the_rows_that_they_lie_in() -> None:
    """Two tables of widths 2 and 3; with next to no noise the largest coordinates are drawn."""
    space = RowSpace(selectable=(TableShape("a", 2000, 2), TableShape("b", 3000, 3)))
    selection = sdp.ExponentialSelection(None, 1e6, 1.0, coordinates=3)
    rule = selection.rule(space, noise_multiplier=1.0, max_grad_norm=CLIP, expected_batch_size=BATCH)
    batch = GivenBatch(space, given_scores=counts_of(r7=0.9, r8=0.1, r4000=0.8, r4004=0.7))
    chosen = rule.select(batch, NoiseSource(1).selection)
    assert chosen.coordinates is not None
    assert chosen.coordinates.tolist() == [7, 4000, 4004]
    assert chosen.rows.tolist() == [3, 2000, 2001]
    assert selection.step_event(1.5) == BoundedRangeGaussianDpEvent(3, 1e6, 1.5)


@pytest.mark.parametrize(("rows", "coordinates"), [(None, None), (3, 3), (None, 0)])
def test_rows_or_coordinates(rows: int | None, coordinates: int | None) -> None:
    with pytest.raises(ValueError, match="coordinates"):
        sdp.ExponentialSelection(rows, 1.0, 1.0, coordinates=coordinates)


def test_the_event_has_draws_and_gradient_on_one_batch() -> None:
    selection = sdp.ExponentialSelection(4, 0.2, 0.1)
    assert selection.step_event(1.5) == BoundedRangeGaussianDpEvent(
        draws=4, epsilon=0.2, noise_multiplier=1.5
    )
