from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(4, 6, 3), (3, 4, 9)),
        (nn.Conv1d(4, 6, 4, padding="same"), (3, 4, 9)),
        (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, bias=False), (3, 4, 10)),
        (nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), (3, 4, 9)),
        (nn.Conv1d(4, 4, 3, groups=4), (3, 4, 9)),
        (nn.Conv2d(4, 6, 3), (3, 4, 7, 6)),
        (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (3, 4, 7, 6)),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (3, 4, 7, 6)),
        (nn.Conv2d(4, 6, 2, groups=2), (3, 4, 7, 6)),
        (nn.Conv2d(1, 2, 5), (3, 1, 28, 28)),
        (nn.Conv1d(4, 6, 3), (0, 4, 9)),
    ],
)
def test_convolutions(check, layer, shape):
    check(layer, torch.randn(shape), reduction="sum")


def test_a_small_network(check):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        nn.ReLU(inplace=True),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    check(model, torch.randn(4, 1, 11, 11), tolerance=3e-5)
