from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.clipping.gradients import outer_products
from sparsedp.clipping.gradients.outer_products import OuterProducts

SIZE = st.integers(1, 12)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 5), SIZE, SIZE, SIZE, st.integers(0, 2**31))
def test_norms_and_sums_are_those_of_the_made_gradients(batch, length, width, height, seed):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(batch, length, width, generator=generator).double()
    g = torch.randn(batch, length, height, generator=generator).double()
    made = torch.einsum("bto,bti->boi", g, a)
    gradient = OuterProducts(a, g)
    assert torch.allclose(gradient.squared_norms(), made.square().sum((1, 2)))
    weights = torch.rand(batch, generator=generator).double()
    out = torch.zeros(height, width).double()
    gradient.accumulate(out, weights)
    assert torch.allclose(out, torch.einsum("b,boi->oi", weights, made))


@pytest.mark.parametrize(("length", "width", "height"), [(3, 40, 50), (40, 5, 6), (30, 40, 50)])
def test_work_in_pieces_is_the_same(monkeypatch, length, width, height):
    gradient = OuterProducts(torch.randn(7, length, width), torch.randn(7, length, height))
    whole = gradient.squared_norms()
    monkeypatch.setattr(outer_products, "CHUNK", 2 * width * height)
    again = OuterProducts(gradient.inputs.values, gradient.output_grads.values)
    assert torch.allclose(again.squared_norms(), whole, rtol=1e-5)


def test_the_gram_form_does_not_understate_gradients_that_cancel():
    # Two positions that nearly cancel: terms of size 1e10 hide a squared norm of about 1e2, which float32
    # sums of those terms cannot see. An understated norm would break the clipping bound.
    a = torch.randn(6, 1, 64).repeat(1, 2, 1) * 1e3
    g = torch.randn(6, 1, 64).repeat(1, 2, 1) * 1e1
    g[:, 1] *= -1 + 1e-4
    gradient = OuterProducts(a, g)
    exact = torch.einsum("bto,bti->boi", g.double(), a.double()).square().sum((1, 2))
    assert torch.allclose(gradient.squared_norms().double(), exact, rtol=1e-2)
    before = ((a @ a.mT) * (g @ g.mT)).sum((1, 2)).double()
    assert not torch.allclose(before, exact, rtol=1e-2)


@pytest.mark.parametrize("size", [2.0**12, 2.0**20, 2.0**24])
def test_positions_that_cancel_do_not_round_other_examples(size):
    """Example 1 has no gradient, from two that cancel; float32 sums on the way would swallow example 0."""
    a, g = torch.zeros(2, 2, 8), torch.zeros(2, 2, 8)
    a[0, 0, 0], g[0, 0, 0] = 1.0, 0.7391
    a[1, :, 0], g[1, :, 0] = torch.tensor([1.0, 1 + 2.0**-10]), size * torch.tensor([1 + 2.0**-10, -1.0])
    assert OuterProducts(a, g).squared_norms().sqrt().tolist() == pytest.approx([0.7391, 0.0])
    both, one = torch.zeros(8, 8).double(), torch.zeros(8, 8).double()
    OuterProducts(a, g).accumulate(both, torch.ones(2))
    OuterProducts(a[1:], g[1:]).accumulate(one, torch.ones(1))
    assert float((both - one).norm()) == pytest.approx(0.7391, rel=1e-6)


def test_at_most_128_examples_are_summed_in_float32(monkeypatch):
    asked = []
    monkeypatch.setattr(
        outer_products, "_add_products", lambda out, g, a, weights, rows: asked.append((weights.dtype, rows))
    )
    for shape, weights in (((1000,), torch.ones(1000)), ((1000,), torch.ones(1000).double())):
        OuterProducts(torch.ones(*shape, 3), torch.ones(*shape, 2)).accumulate(torch.zeros(2, 3), weights)
    OuterProducts(torch.ones(20, 5, 3), torch.ones(20, 5, 2)).accumulate(torch.zeros(2, 3), torch.ones(20))
    assert asked == [(torch.float32, 128), (torch.float64, 128), (torch.float64, 5 * 128)]


def test_at_most_16_such_sums_are_added_in_float32(monkeypatch):
    """The rest is float64: no sum that is handed on holds more than 16 times 128 examples."""
    summed = []
    own = outer_products._sum_of_sums

    def noted(g, a, weights, rows):
        summed.append((g.shape[0], a.shape[0], weights.shape[0], rows))
        return own(g, a, weights, rows)

    monkeypatch.setattr(outer_products, "_sum_of_sums", noted)
    out = torch.zeros(2, 3).double()
    OuterProducts(torch.ones(5000, 3), torch.ones(5000, 2)).accumulate(out, torch.full((5000,), 0.5))
    assert summed == [(2048, 2048, 2048, 128), (2048, 2048, 2048, 128), (904, 904, 904, 128)]
    assert out.tolist() == [[2500.0] * 3] * 2


@pytest.mark.parametrize(("width", "height"), [(3, 5), (5, 3), (270, 280), (280, 270)])
def test_a_float32_product_holds_at_most_so_many_rows(monkeypatch, width, height):
    multiplied = []

    def note(name):
        own = getattr(torch, name)

        def noted(left, right, **options):
            sums = left.shape[0] if left.dim() == 3 else 1
            multiplied.extend([(left.shape[-1], right.shape[-2], left.dtype)] * sums)
            return own(left, right, **options)

        monkeypatch.setattr(torch, name, noted)

    note("mm")
    note("bmm")
    monkeypatch.setattr(outer_products, "_addmm_adds_one_sum", lambda *shape: False)
    a, g = torch.randn(300, width), torch.randn(300, height)
    weights = torch.arange(300.0).unsqueeze(1) / 4
    total = outer_products._sum_of_sums(g, a, weights, 128)
    assert multiplied == [(rows, rows, torch.float32) for rows in (128, 128, 44)]
    assert torch.allclose(total.double(), (g * weights).double().T @ a.double(), rtol=0, atol=0.01)


def test_half_precision_is_summed_in_the_precision_of_the_result():
    a, g = torch.randn(64, 8, dtype=torch.bfloat16), torch.randn(64, 8, dtype=torch.bfloat16)
    out = torch.zeros(8, 8)
    OuterProducts(a, g).accumulate(out, torch.ones(64))
    assert torch.allclose(out, g.float().T @ a.float(), atol=1e-4)


def test_factors_are_not_changed():
    a, g = torch.randn(4, 3), torch.randn(4, 5)
    before = a.clone(), g.clone()
    gradient = OuterProducts(a, g)
    gradient.squared_norms()
    gradient.accumulate(torch.zeros(5, 3), torch.rand(4))
    assert torch.equal(a, before[0])
    assert torch.equal(g, before[1])


@pytest.mark.parametrize("length", [None, 2, 40])
@pytest.mark.parametrize(("input_size", "grad_size"), [(1e18, 1e-23), (1e-23, 1e18), (1e15, 1e-22)])
def test_norms_of_factors_that_float32_cannot_square(length, input_size, grad_size):
    shape = (3,) if length is None else (3, length)
    a, g = torch.randn(*shape, 30), torch.randn(*shape, 31)
    a[1], g[1] = a[1] * input_size, g[1] * grad_size
    exact = (
        torch.bmm((g if length else g.unsqueeze(1)).double().mT, (a if length else a.unsqueeze(1)).double())
        .square()
        .sum((1, 2))
    )
    assert torch.allclose(OuterProducts(a, g).squared_norms(), exact, rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("shape", [(2, 64, 64), (8, 4, 4)])
@pytest.mark.parametrize("size", [2.0**12, 2.0**40, 2.0**55])
@pytest.mark.parametrize("with_nan", [False, True])
@pytest.mark.parametrize("exactly", [False, True])
def test_positions_that_cancel_beyond_float64_are_clipped_and_round_nobody(shape, size, with_nan, exactly):
    """StepConfig of up to 2**110 that cancel, or do so but for rounding: what is measured must be what is summed."""
    length, width, height = shape
    a, g = torch.zeros(52, length, width), torch.zeros(52, length, height)
    a[:50, 0, 0], g[:50, 0, 0] = 0.9, 1.0
    a[50, 0, 0], g[50, 0, 0] = size * (1 + 2.0**-12), size * (1 + 2.0**-13)
    a[50, 1, 0], g[50, 1, 0] = a[50, 0, 0] * g[50, 0, 0] / size, -size
    if exactly:
        a[50, 1, 0], g[50, 1, 0] = a[50, 0, 0], -g[50, 0, 0]
    a[51] = torch.nan if with_nan else 0.0

    def sums(first: int, end: int) -> torch.Tensor:
        gradient = OuterProducts(a[first:end], g[first:end])
        norms = gradient.squared_norms().sqrt()
        weights = (1 / norms.clamp(min=1)).nan_to_num(0).float()
        out = torch.zeros(height, width).double()
        gradient.accumulate(out, weights)
        return out

    moved = sums(0, 52) - sums(0, 50)
    assert moved.norm() <= 1 + 1e-3
    assert sums(50, 52).norm() <= 1 + 1e-3


def test_the_gram_form_sees_products_of_vectors_whose_squares_vanish():
    """Inputs of 2**-76 and gradients of 2**63: float32 has no square of the one, and a product of 2**-13."""
    a, g = torch.zeros(1, 2, 64), torch.zeros(1, 2, 64)
    a[0, 0, 0], g[0, 0, 0] = 2.0**-76, 2.0**63
    a[0, 1, 1], g[0, 1, 1] = 1.0, 2.0**-30
    exact = torch.einsum("bto,bti->boi", g.double(), a.double()).square().sum((1, 2))
    assert torch.allclose(OuterProducts(a, g).squared_norms(), exact, rtol=1e-3)


def test_the_gram_form_does_not_measure_wide_vectors_short():
    """A softmax over a million words: float32 sums lose what stands beside one large number."""
    a, g = torch.ones(1, 2, 8), torch.full((1, 2, 1_000_000), 0.9)
    a, g = a.repeat(1, 1, 20), torch.cat([torch.full((1, 2, 1), 4096.0), g], 2)
    exact = 4 * 160 * g[0, 0].double().square().sum()
    assert float(OuterProducts(a, g).squared_norms()) == pytest.approx(float(exact), rel=2.0**-11)


def test_a_library_that_adds_term_by_term_to_the_total_is_noticed(monkeypatch):
    """The control: its sums round more often than ``float32_sums_move`` allows for, so it must not be used."""
    shape = (64, 32, 64, (64, 64), torch.float32, torch.get_num_threads())
    outer_products._addmm_adds_one_sum.cache_clear()
    assert outer_products._addmm_adds_one_sum(*shape)

    def term_by_term(total, left, right):
        for term in range(left.shape[1]):
            total = total + left[:, term : term + 1] * right[term]
        return total

    outer_products._addmm_adds_one_sum.cache_clear()
    monkeypatch.setattr(torch.Tensor, "addmm", term_by_term)
    assert not outer_products._addmm_adds_one_sum(*shape)
    outer_products._addmm_adds_one_sum.cache_clear()


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("height", "width"), [(280, 270), (80, 70), (3, 4), (1, 9), (9, 1)])
@pytest.mark.parametrize("examples", [0, 1, 128, 700, 2048, 4100])
def test_the_sums_are_those_of_float64_either_way(monkeypatch, is_known, height, width, examples):
    monkeypatch.setattr(outer_products, "_addmm_adds_one_sum", lambda *shape: is_known)
    a, g, weights = torch.randn(examples, width), torch.randn(examples, height), torch.rand(examples)
    out = torch.zeros(height, width, dtype=torch.float64)
    OuterProducts(a, g).accumulate(out, weights)
    exact = (g.double() * weights.double()[:, None]).T @ a.double()
    assert torch.allclose(out, exact, rtol=0, atol=1e-4)
