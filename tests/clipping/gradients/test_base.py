from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparsedp.clipping.gradients.base import PerExampleGradient, Sum, float32_sums_move, total
from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.outer_products import OuterProducts
from sparsedp.clipping.gradients.scattered_rows import ScatteredRows
from sparsedp.rows.lookups import EmbeddingLookups

B, ROWS, DIM = 4, 6, 3


def products(length: int = 5) -> OuterProducts:
    return OuterProducts(torch.randn(B, length, DIM), torch.randn(B, length, ROWS))


def scattered() -> ScatteredRows:
    ids = torch.randint(0, ROWS, (B * 4,))
    return ScatteredRows(
        EmbeddingLookups(ids, torch.arange(B).repeat_interleave(4), torch.randn(B * 4, DIM)), B, ROWS
    )


def made() -> Materialised:
    return Materialised(torch.randn(B, ROWS, DIM))


def squares(values: Tensor) -> Tensor:
    return values.double().square().sum((1, 2))


KINDS = [products, scattered, made]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_what_it_instantiates(kind):
    gradient: PerExampleGradient = kind()
    values = gradient.instantiate()
    assert torch.allclose(gradient.squared_norms(), squares(values), rtol=1e-5)
    weights, start = torch.rand(B), torch.randn(ROWS, DIM)
    out = start.clone()
    gradient.accumulate(out, weights)
    assert torch.allclose(out, start + torch.einsum("b,bij->ij", weights, values), atol=1e-5)
    some = torch.tensor([3, 1])
    assert torch.allclose(gradient.select(some).instantiate(), values[some])


@pytest.mark.parametrize("kind", KINDS)
def test_uses_of_one_kind_merge(kind):
    parts = [kind(), kind(), kind()]
    merged = total(parts)
    assert type(merged) is type(parts[0])
    assert torch.allclose(merged.instantiate(), sum(part.instantiate() for part in parts), atol=1e-5)


@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("right", KINDS)
def test_cross_terms(left, right):
    if left is right:
        return
    a, b = left(), right()
    expected = (a.instantiate() * b.instantiate()).sum((1, 2))
    assert torch.allclose(a.dot(b), expected, atol=1e-5)
    assert torch.allclose(b.dot(a), expected, atol=1e-5)


def test_a_sum_of_all_kinds():
    parts = [products(), scattered(), made(), products(2), scattered()]
    values = sum(part.instantiate() for part in parts)
    gradient = total(parts)
    assert isinstance(gradient, Sum)
    assert torch.allclose(gradient.instantiate(), values, atol=1e-5)
    assert torch.allclose(gradient.squared_norms(), squares(values), rtol=1e-5)
    out, weights = torch.zeros(ROWS, DIM), torch.rand(B)
    gradient.accumulate(out, weights)
    assert torch.allclose(out, torch.einsum("b,bij->ij", weights, values), atol=1e-5)
    some = torch.tensor([2, 0])
    assert torch.allclose(gradient.select(some).instantiate(), values[some], atol=1e-5)


def test_parts_that_cancel_do_not_lose_the_norm():
    product = products()
    rest = 1e-3 * torch.randn(B, ROWS, DIM)
    gradient = Sum([product, Materialised(rest - product.instantiate())])
    assert torch.allclose(gradient.squared_norms(), squares(gradient.instantiate()), rtol=1e-6)
    assert torch.allclose(gradient.squared_norms(), squares(rest), rtol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_example_of_weight_zero_leaves_no_trace(kind, bad):
    gradient = kind()
    clean = gradient.instantiate().clone()
    if isinstance(gradient, OuterProducts):
        gradient.inputs.values[1] = bad
        gradient.output_grads.values[1] = bad
    elif isinstance(gradient, ScatteredRows):
        gradient.lookups.output_grads[gradient.lookups.examples == 1] = bad
        gradient = ScatteredRows(gradient.lookups, B, ROWS)
    else:
        gradient.values[1] = bad
    others = torch.tensor([0, 2, 3])
    norms = gradient.squared_norms()
    assert not norms[1].isfinite()
    assert torch.allclose(norms[others], squares(clean)[others], rtol=1e-5)
    weights = torch.tensor([0.5, 0.0, 1.0, 2.0])
    for parts in ([gradient], [gradient, made() if kind is not made else products()]):
        out = torch.zeros(ROWS, DIM)
        total(parts).accumulate(out, weights)
        assert out.isfinite().all()
    out = torch.zeros(ROWS, DIM)
    gradient.accumulate(out, weights)
    assert torch.allclose(out, torch.einsum("b,bij->ij", weights[others], clean[others]), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_no_example_has_weight(kind):
    out = torch.ones(ROWS, DIM)
    kind().accumulate(out, torch.zeros(B))
    assert torch.equal(out, torch.ones(ROWS, DIM))


def summed(gradient: PerExampleGradient, clip: float = 1.0) -> Tensor:
    """The sum of the gradients, each clipped by its measured norm."""
    norms = gradient.squared_norms().sqrt()
    out = torch.zeros(gradient.instantiate().shape[1:]).double()
    gradient.accumulate(out, (clip / norms.clamp(min=clip)).float())
    return out


@pytest.mark.parametrize("size", [2.0**12, 2.0**26, 2.0**60, 2.0**100])
def test_kinds_that_cancel_neither_round_other_examples_nor_pass_the_clip(size):
    """An example whose use as a matrix and as a table cancel, but for the rounding of float32, among 100 others."""
    a, g = torch.zeros(101, 3), torch.zeros(101, 4)
    a[:100, 0], g[:100, 0] = 0.9, 1.0
    a[100, 0], g[100, 0] = size * (1 + 2.0**-12), 1 + 2.0**-13
    back = -(a[100] * g[100, 0])
    read = EmbeddingLookups(torch.zeros(1, dtype=torch.int64), torch.tensor([100]), back.view(1, 3))

    def sums(first: int, end: int) -> Tensor:
        examples = torch.arange(first, end)
        return summed(Sum([OuterProducts(a, g), ScatteredRows(read, 101, 4)]).select(examples))

    assert (sums(0, 101) - sums(0, 100)).norm() <= 1 + 1e-6
    assert (sums(100, 101)).norm() <= 1 + 1e-6


@pytest.mark.parametrize("blocks", [1, 3])
def test_the_bound_on_float32_sums_is_that_of_the_deepest_tree_of_additions(blocks):
    """Sums of 128 numbers one after the other, 16 of them one after the other: each addition is off by 2^-24 of C
    for each number that it holds, and so in each of two batches that differ in an example."""
    examples = blocks * 16 * 128
    additions = sum((128 - n % 128) + (16 - n // 128 % 16) for n in range(examples))
    assert float32_sums_move(examples) == pytest.approx(2 * additions * 2.0**-24, rel=1e-12)
    assert float32_sums_move(0) == 0.0


@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("right", KINDS)
def test_parts_that_may_cancel_are_summed_in_float64(left, right):
    """In float32 the rounding of one example's large parts would move the sum of the others."""
    one, two = left(), right()
    if type(one) is type(two):
        return
    both = Sum([one, two])
    weights = torch.rand(B)
    exact = torch.zeros(ROWS, DIM, dtype=torch.float64)
    for part in (one, two):
        part._add_to(exact, weights.double())
    out = torch.zeros(ROWS, DIM, dtype=torch.float64)
    both.accumulate(out, weights)
    torch.testing.assert_close(out, exact, rtol=0, atol=1e-14)


def test_a_single_position_part_is_not_summed_in_float32_beside_another():
    both = Sum([OuterProducts(torch.randn(B, DIM), torch.randn(B, ROWS)), made()])
    weights = torch.rand(B)
    exact = torch.zeros(ROWS, DIM, dtype=torch.float64)
    for part in both.parts:
        part._add_to(exact, weights.double())
    out = torch.zeros(ROWS, DIM, dtype=torch.float64)
    both.accumulate(out, weights)
    torch.testing.assert_close(out, exact, rtol=0, atol=1e-14)
