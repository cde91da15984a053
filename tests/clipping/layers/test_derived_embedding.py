from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsedp.clipping import Capture, UnsupportedLayerError


class Scaled(nn.Embedding):
    """Word embeddings times a constant."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.weight.shape[1] ** 0.5


class Counted(nn.Embedding):
    """Positions counted from a mask, read once for all examples."""

    def forward(self, mask: Tensor) -> Tensor:
        assert self.weight.device == mask.device
        return F.embedding(weight=self.weight, input=torch.arange(mask.shape[1]).unsqueeze(0))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.out = Scaled(9, 4, padding_idx=1), Counted(8, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.out(torch.tanh(self.words(ids) + self.places(mask)))


def test_readings_within_a_forward_of_its_own(check):
    capture = check(Text(), torch.randint(0, 9, (5, 6)), torch.ones(5, 6))
    assert capture.tables == {}
    assert {"words.weight", "places.weight"} < set(capture.dense)


def test_nothing_table_sized_is_made():
    model = Scaled(200_000, 8)
    capture = Capture(model, loss_reduction="sum")
    model(torch.randint(0, 200_000, (64, 10))).sum().backward()
    # A gradient of the table for each example would be 100 million numbers.
    assert capture.take()[0].dense["weight"].squared_norms().shape == (64,)


def test_another_use_of_the_weight_is_refused():
    class Both(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return F.linear(super().forward(ids), self.weight)

    model = nn.Sequential(Both(5, 3))
    Capture(model, loss_reduction="mean")
    with pytest.raises(UnsupportedLayerError, match=r"module '0' \(Both\): uses its weight in linear"):
        model(torch.tensor([1, 2]))
    assert model[0].weight.requires_grad


def test_another_use_of_the_weight_by_name_is_refused():
    class Both(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return torch.mm(super().forward(ids), mat2=self.weight)

    model = nn.Sequential(Both(3, 3))
    Capture(model, loss_reduction="mean")
    with pytest.raises(UnsupportedLayerError, match="uses its weight in mm"):
        model(torch.tensor([1, 2]))


def test_options_are_refused_as_in_the_base_class():
    with pytest.raises(UnsupportedLayerError, match="max_norm"):
        Capture(Scaled(5, 3, max_norm=1.0), loss_reduction="mean")
