from __future__ import annotations

import pytest
import torch
from torch import nn

FIRST = (5, 3, 4)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(4), (5, 4)),
        (nn.LayerNorm(4), (5, 3, 4)),
        (nn.LayerNorm((3, 4)), (5, 3, 4)),
        (nn.LayerNorm((3, 4), bias=False), (5, 2, 3, 4)),
        (nn.RMSNorm(4), (5, 4)),
        (nn.RMSNorm((3, 4), eps=1e-3), (5, 2, 3, 4)),
        (nn.GroupNorm(2, 4), (5, 4)),
        (nn.GroupNorm(2, 4), (5, 4, 3, 2)),
        (nn.InstanceNorm1d(4, affine=True), (5, 4, 6)),
        (nn.InstanceNorm2d(4, affine=True), (5, 4, 3, 2)),
        (nn.LayerNorm(4), (0, 3, 4)),
        (nn.LayerNorm(4, eps=0.3), (5, 3, 4)),
        (nn.RMSNorm(4, eps=0.3), (5, 3, 4)),
        (nn.GroupNorm(2, 4, eps=0.3), (5, 4, 3, 2)),
        (nn.InstanceNorm1d(4, eps=0.3, affine=True), (5, 4, 6)),
    ],
)
def test_scales_and_shifts(check, layer, shape):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    check(layer, torch.randn(shape), reduction="sum")


def test_between_linear_layers(check):
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.RMSNorm(6), nn.Linear(6, 3))
    check(model, torch.randn(5, 7, 4), tolerance=3e-5)


def test_without_parameters_there_is_nothing_to_capture(check):
    capture = check(
        nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6, elementwise_affine=False)), torch.randn(5, 4)
    )
    assert set(capture.dense) == {"0.weight", "0.bias"}
