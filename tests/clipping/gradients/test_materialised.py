from __future__ import annotations

import pytest
import torch

from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.outer_products import OuterProducts
from sparsedp.clipping.gradients.vectors import Vectors


def test_shares_its_squares_with_the_weight():
    grads = Vectors(torch.randn(4, 3))
    weight, bias = OuterProducts(torch.randn(4, 5), grads), Materialised(grads)
    weight.squared_norms()
    assert bias.squared_norms() is grads.squares


def test_values_of_any_shape():
    values = torch.randn(4, 2, 3, 5)
    gradient = Materialised(values)
    assert torch.allclose(gradient.squared_norms(), values.square().sum((1, 2, 3)).double())
    out = torch.zeros(2, 3, 5)
    gradient.accumulate(out, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert torch.allclose(
        out, torch.einsum("b,bijk->ijk", torch.tensor([1.0, 2.0, 3.0, 4.0]), values), atol=1e-5
    )


def test_one_number_per_example():
    gradient = Materialised(torch.tensor([3.0, -4.0]))
    assert gradient.squared_norms().tolist() == [9.0, 16.0]
    out = torch.zeros(())
    gradient.accumulate(out, torch.tensor([1.0, 0.5]))
    assert out.item() == 1.0


def test_products_are_not_rounded_to_float32():
    weights, values = torch.tensor([1 / 3, 1 / 7]), torch.tensor([[1.1], [-1.3]])
    out = torch.zeros(1).double()
    Materialised(values).accumulate(out, weights)
    assert float(out) == pytest.approx(float((weights.double() * values[:, 0].double()).sum()), rel=1e-14)
