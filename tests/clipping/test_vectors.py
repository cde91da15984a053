from __future__ import annotations

import pytest
import torch

from sparsedp.clipping.vectors import Vectors, row_squares, wide


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_squares_are_float32_or_better(dtype):
    values = torch.full((3, 4), 300.0, dtype=dtype)
    squares = row_squares(values)
    assert squares.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(squares.float(), torch.full((3,), 4 * values[0, 0].float() ** 2))


def test_wide_does_not_copy_what_is_wide():
    values = torch.randn(3)
    assert wide(values) is values


def test_lengths_are_computed_once():
    vectors = Vectors(torch.randn(2, 3, 4))
    assert vectors.squares.shape == (2, 3)
    assert vectors.squares is vectors.squares
