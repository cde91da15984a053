from __future__ import annotations

import pytest
import torch

from sparsedp.clipping.gradients.vectors import Vectors, row_squares, upcast


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_squares_are_float64(dtype):
    values = torch.full((3, 4), 300.0, dtype=dtype)
    squares = row_squares(values)
    assert squares.dtype == torch.float64
    assert torch.allclose(squares.float(), torch.full((3,), 4 * values[0, 0].float() ** 2))


def test_wide_does_not_copy_what_is_wide():
    values = torch.randn(3)
    assert upcast(values) is values


def test_lengths_are_computed_once():
    vectors = Vectors(torch.randn(2, 3, 4))
    assert vectors.squares.shape == (2, 3)
    assert vectors.squares is vectors.squares


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-23, 1e20, 1e30])
def test_squares_neither_vanish_nor_overflow(size):
    values = torch.full((2, 3), size)
    values[1] = 1.0
    exact = values.double().square().sum(1)
    assert torch.allclose(row_squares(values), exact, rtol=1e-6, atol=0.0)
    assert torch.linalg.vector_norm(values[0]).double() ** 2 != pytest.approx(
        float(exact[0]), rel=1e-3, abs=0.0
    )


@pytest.mark.parametrize("width", [4096, 4097, 100_000, 3_000_000])
@pytest.mark.parametrize("strided", [False, True])
def test_wide_vectors_are_not_measured_short(width: int, strided: bool) -> None:
    """One large number, beside which float32 sums lose the squares of all that come after it."""
    values = torch.full((width, 2), 0.9)
    values[0] = 4096.0
    values = values.T if strided else values.T.contiguous()
    exact = values.double().square().sum(1)
    assert torch.allclose(row_squares(values), exact, rtol=2.0**-11)
