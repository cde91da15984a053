"""Norms and sums are those of float32 even where torch may round the factors of a product to less."""

from __future__ import annotations

import pytest
import torch

from sparsedp.clipping.gradients import vectors
from sparsedp.clipping.gradients.outer_products import OuterProducts
from sparsedp.clipping.gradients.vectors import upcast


@pytest.fixture
def medium():
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


def test_products_are_taken_in_float64(medium):
    assert upcast(torch.ones(2)).dtype == upcast(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float64


def test_a_precision_set_by_backend_counts_as_low(monkeypatch):
    """Torch then raises where it is asked for one precision."""

    def raises() -> str:
        raise RuntimeError

    assert upcast(torch.ones(2)).dtype == torch.float32
    monkeypatch.setattr(torch, "get_float32_matmul_precision", raises)
    assert upcast(torch.ones(2)).dtype == torch.float64


@pytest.mark.parametrize("length", [None, 3, 40])
def test_norms_and_sums_are_exact(medium, monkeypatch, length):
    """The control: with float32 factors rounded to bfloat16, as some processors do, they are not."""
    shape = (300,) if length is None else (300, length)
    a, g, weights = torch.randn(*shape, 24), torch.randn(*shape, 20), torch.rand(300)
    made = torch.einsum("bto,bti->boi", *(x.double().reshape(300, -1, x.shape[-1]) for x in (g, a)))
    exact = torch.einsum("b,boi->oi", weights.double(), made)

    def error() -> float:
        gradient, out = OuterProducts(a, g), torch.zeros(20, 24, dtype=torch.float64)
        norms = gradient.squared_norms()
        gradient.accumulate(out, weights)
        off = (norms / made.square().sum((1, 2)) - 1).abs().max()
        return max(float(off), float((out - exact).abs().max() / exact.abs().max()))

    assert error() < 1e-6
    rounded = lambda values: values.bfloat16().float()  # noqa: E731
    for module in (vectors, __import__(OuterProducts.__module__, fromlist=["upcast"])):
        monkeypatch.setattr(module, "upcast", rounded)
    assert error() > 1e-5
