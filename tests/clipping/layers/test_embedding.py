from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparsedp.clipping import Capture, UnsupportedLayerError


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 4), (6, 2, 3), (0,), (0, 4)])
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_ids_of_any_shape_with_duplicates(check, shape, padding_idx):
    model = nn.Embedding(5, 4, padding_idx=padding_idx)
    capture = check(model, torch.randint(0, 5, shape), reduction="sum")
    table = capture.tables[""]
    assert (table.rows, table.dim, table.parameter_name) == (5, 4, "weight")
    assert table.parameter is model.weight


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("sparse", [False, True])
def test_in_a_model(check, dtype, sparse):
    model = nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.ReLU(inplace=True), nn.Linear(4, 2))
    capture = check(model, torch.randint(0, 9, (7, 3)).to(dtype))
    assert set(capture.tables) == {"0"}
    assert set(capture.dense) == {"2.weight", "2.bias"}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_readings_belong_to_their_examples(rows):
    ids = torch.tensor(rows)
    model = nn.Embedding(4, 2, padding_idx=0)
    capture = Capture(model, loss_reduction="sum")
    weights = torch.rand(*ids.shape, 2)
    (model(ids) * weights).sum().backward()
    read = capture.take()[0].tables[""]
    saved = ids != 0
    assert torch.equal(read.ids, ids[saved])
    assert torch.equal(read.examples, torch.arange(len(rows)).unsqueeze(1).expand_as(ids)[saved])
    assert torch.equal(read.output_grads, weights[saved])


class Positions(nn.Module):
    """Words and positions, where positions are looked up once for all examples, as BERT does."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.places = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1]).unsqueeze(0)
        return self.out(torch.tanh(self.words(ids) + self.places(places)))


@pytest.mark.parametrize("batch", [0, 1, 5])
def test_positions_shared_by_all_examples(check, batch):
    check(Positions(), torch.randint(0, 9, (batch, 6)), reduction="sum")


def test_a_single_id_keeps_its_shape_and_is_refused_as_no_examples():
    class Shared(Positions):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.read = self.places(torch.tensor([2]))
            return self.out(self.words(ids) + self.read)

    model = Shared()
    capture = Capture(model, loss_reduction="sum")
    model(torch.randint(0, 9, (5, 6))).sum().backward()
    assert model.read.shape == (1, 4)
    with pytest.raises(ValueError, match="'places' gives"):
        capture.take()


def test_options_that_tie_examples_together_are_refused():
    with pytest.raises(UnsupportedLayerError, match=r"module 'words' \(Embedding\): max_norm"):
        Capture(nn.ModuleDict({"words": nn.Embedding(4, 2, max_norm=1.0)}), loss_reduction="mean")
    with pytest.raises(UnsupportedLayerError, match="scale_grad_by_freq"):
        Capture(nn.Embedding(4, 2, scale_grad_by_freq=True), loss_reduction="mean")


def test_a_frozen_table_may_scale_its_gradients(check):
    model = nn.Sequential(nn.Embedding(9, 4, scale_grad_by_freq=True), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    assert check(model, torch.randint(0, 9, (7, 3))).tables == {}


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_frozen_table_that_reading_changes_is_refused(kind):
    """Its rows would tell, without noise, which of them the examples read."""
    table = kind(9, 4, max_norm=1e-3)
    before = table.weight.detach().clone()
    table(torch.tensor([[3]]))
    assert (table.weight != before).any(1).nonzero().flatten().tolist() == [3]
    table.weight.requires_grad_(False)
    with pytest.raises(UnsupportedLayerError, match="max_norm"):
        Capture(nn.Sequential(table, nn.Linear(4, 2)), loss_reduction="mean")
