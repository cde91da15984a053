"""Rows are as wide as their examples pay for, and as strong as wide ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.models import PCTR
from sparsedp.planning.widths import EXAMPLES_PER_COORDINATE, WIDTH, scale_at_full_width, scales, widths


def test_a_table_is_as_wide_as_its_examples_a_row_pay_for() -> None:
    per_row = [0.01, 1, 2, 3.9, 4, 7.9, 8, 1e6]
    examples = 10**9
    rows = [math.floor(examples / (EXAMPLES_PER_COORDINATE * each)) for each in per_row]
    assert widths(rows, examples) == [1, 1, 2, 2, 4, 4, 8, 8]


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=8), st.integers(1, 2**40))
def test_widths_are_small_powers_of_two_that_fall_with_the_rows(rows: list[int], examples: int) -> None:
    found = widths(sorted(rows), examples)
    assert set(found) <= {1, 2, 4, WIDTH}
    assert found == sorted(found, reverse=True)


def test_a_narrow_row_has_as_long_a_gradient_as_a_wide_one() -> None:
    """The mean square over many networks."""
    dims = [1, 2, 4, 8]
    squares = torch.zeros(len(dims))
    torch.manual_seed(0)
    for _ in range(300):
        model = PCTR([3] * len(dims), 4, dims=dims, hidden=[16], table_scale=scales(20.0, dims))
        model(torch.randn(1, 4), torch.zeros(1, len(dims), dtype=torch.int64)).backward()
        squares += torch.stack([table.weight.grad.to_dense().square().sum() for table in model.embeddings])
    assert (squares / squares.mean()).tolist() == pytest.approx([1.0] * len(dims), rel=0.35)


def test_scales_are_compared_at_full_width() -> None:
    dims = [1, 2, 8, 16]
    assert scale_at_full_width(scales(20.0, dims), dims) == pytest.approx(20.0)
    assert scale_at_full_width([1.0, 3.0], [WIDTH, WIDTH]) == 3.0
    assert scale_at_full_width(7.0, dims) == 7.0
    with pytest.raises(
        ValueError, match=r"^table_scale must be one number, or one for each of 4 tables, got 1$"
    ):
        scale_at_full_width([1.0], dims)
