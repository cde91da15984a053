from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture, UnsupportedLayerError


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding_idx", [None, 1])
@pytest.mark.parametrize("length", [1, 4])
def test_two_dimensional_ids(check, mode, padding_idx, length):
    bag = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding_idx)
    model = nn.Sequential(bag, nn.ReLU(inplace=True), nn.Linear(3, 2))
    ids = torch.randint(0, 5, (6, length))
    ids[2] = 1
    capture = check(model, ids)
    assert set(capture.tables) == {"0"}


class Jagged(nn.Module):
    """A bag of each example's ids, given as a list of lists flattened."""

    def __init__(self, bag: nn.EmbeddingBag, weighted: bool = False) -> None:
        super().__init__()
        self.bag = bag
        self.weighted = weighted
        self.out = nn.Linear(bag.embedding_dim, 2)

    def forward(self, bags: list[list[int]]) -> Tensor:
        sizes = torch.tensor([0] + [len(bag) for bag in bags])
        offsets = sizes.cumsum(0)
        if not self.bag.include_last_offset:
            offsets = offsets[:-1]
        ids = torch.tensor([i for bag in bags for i in bag], dtype=torch.int64)
        weights = 1 + ids.float() / 7 if self.weighted else None
        return self.out(self.bag(ids, offsets, per_sample_weights=weights))


BAGS = [[1, 1, 3], [], [0], [4, 2, 4, 4], [1, 0]]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("mode", "weighted", "padding"),
    [("sum", False, None), ("sum", True, None), ("mean", False, None), ("mean", False, 1), ("sum", True, 1)],
)
def test_offsets(agree, losses, mode, weighted, padding, last):
    bag = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding, include_last_offset=last)
    model = Jagged(bag, weighted)
    expected = {name: [] for name, _ in model.named_parameters()}
    for one in BAGS:
        model.zero_grad()
        losses(model([one])).sum().backward()
        for name, parameter in model.named_parameters():
            expected[name].append(parameter.grad.clone())
    model.zero_grad()
    capture = Capture(model, loss_reduction="mean")
    losses(model(BAGS)).mean().backward()
    [captured] = capture.take()
    agree(captured, capture, {name: torch.stack(each) for name, each in expected.items()})


def test_an_empty_bag_reads_nothing():
    bag = nn.EmbeddingBag(5, 3, mode="sum")
    capture = Capture(bag, loss_reduction="sum")
    bag(torch.tensor([3, 3]), torch.tensor([0, 1, 1])).sum().backward()
    read = capture.take()[0].tables[""]
    assert read.examples.tolist() == [0, 2]


def test_an_empty_batch(check):
    check(nn.EmbeddingBag(5, 3, mode="mean"), torch.zeros(0, 4, dtype=torch.int64), reduction="sum")


def test_weights_that_are_learned_keep_their_gradient():
    bag = nn.EmbeddingBag(5, 3, mode="sum")
    capture = Capture(bag, loss_reduction="sum")
    ids, weights = torch.tensor([[0, 1], [2, 2]]), torch.rand(2, 2, requires_grad=True)
    bag(ids, per_sample_weights=weights).sum().backward()
    assert torch.allclose(weights.grad, bag.weight.detach()[ids].sum(2))
    read = capture.take()[0].tables[""]
    assert torch.equal(read.scales, weights.detach().flatten())
    assert not read.scales.requires_grad


@pytest.mark.parametrize(
    ("bag", "reason"),
    [
        (nn.EmbeddingBag(5, 3, mode="max"), "mode 'max'"),
        (nn.EmbeddingBag(5, 3, mode="sum", max_norm=1.0), "max_norm"),
        (nn.EmbeddingBag(5, 3, mode="sum", scale_grad_by_freq=True), "scale_grad_by_freq"),
    ],
)
def test_refused_options(bag, reason):
    with pytest.raises(UnsupportedLayerError, match=reason):
        Capture(nn.Sequential(bag), loss_reduction="mean")
