from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparsedp.clipping import Capture

SIZE = st.integers(1, 9)


def test_two_layers_with_an_in_place_activation_after_the_first(check):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3, bias=False))
    capture = check(model, torch.randn(5, 4))
    assert set(capture.dense) == {"0.weight", "0.bias", "2.weight"}
    assert capture.tables == {}


@pytest.mark.parametrize("middle", [(), (7,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_sequences_of_any_middle_dimensions(check, middle, reduction):
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    check(model, torch.randn(5, *middle, 4), reduction=reduction)


@pytest.mark.parametrize("bias", [True, False])
def test_in_place_activations_after_layers_on_sequences(check, bias):
    model = nn.Sequential(
        nn.Linear(4, 6, bias=bias), nn.ReLU(inplace=True), nn.Linear(6, 3, bias=bias), nn.ReLU(True)
    )
    check(model, torch.randn(5, 7, 4))


@pytest.mark.parametrize(("length", "width", "height"), [(2, 40, 30), (50, 3, 4), (20, 15, 15)])
def test_both_norm_forms(check, length, width, height):
    check(nn.Linear(width, height), torch.randn(4, length, width))


@settings(deadline=None, max_examples=25)
@given(SIZE, st.integers(0, 6), SIZE, SIZE, st.booleans())
def test_any_shape(batch, length, width, height, sequence):
    torch.manual_seed(batch)
    layer = nn.Linear(width, height).double()
    x = torch.randn((batch, length, width) if sequence else (batch, width)).double()
    capture = Capture(layer, loss_reduction="sum")
    layer(x).sin().sum().backward()
    [captured] = capture.take()
    g = layer(x).cos().reshape(batch, -1, height)
    made = torch.einsum("bto,bti->boi", g, x.reshape(batch, -1, width))
    weight, bias = captured.dense["weight"], captured.dense["bias"]
    assert torch.allclose(weight.squared_norms(), made.square().sum((1, 2)))
    assert torch.allclose(bias.squared_norms(), g.sum(1).square().sum(1))
    out = torch.zeros_like(layer.weight)
    weight.accumulate(out, torch.ones(batch).double())
    assert torch.allclose(out, made.sum(0))


def test_half_precision_activations_have_float64_norms():
    layer = nn.Linear(64, 32)
    capture = Capture(layer, loss_reduction="sum")
    x = torch.randn(6, 5, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    # Squares of 300 * 300 would overflow in half precision.
    (out.float() * 300).sum().backward()
    [captured] = capture.take()
    for gradient in captured.dense.values():
        assert gradient.squared_norms().dtype == torch.float64
    expected = 300**2 * 32 * x.sum(1).square().sum(1)
    assert torch.allclose(captured.dense["weight"].squared_norms(), expected.double(), rtol=1e-2)


def test_an_empty_batch(check):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    check(model, torch.randn(0, 4), reduction="sum")
    check(model, torch.randn(0, 2, 4), reduction="sum")


def test_a_frozen_bias_is_not_captured(check):
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    model[0].bias.requires_grad_(False)
    model[1].weight.requires_grad_(False)
    assert set(check(model, torch.randn(5, 4)).dense) == {"0.weight", "1.bias"}


def test_a_subclass_that_keeps_forward_has_the_rule(check):
    class Renamed(nn.Linear):
        pass

    check(Renamed(3, 2), torch.randn(4, 3))


def test_transposed_linear_of_transformers(check):
    utils = pytest.importorskip("transformers.pytorch_utils")
    check(nn.Sequential(utils.Conv1D(6, 4), nn.Tanh(), utils.Conv1D(3, 6)), torch.randn(5, 7, 4))
