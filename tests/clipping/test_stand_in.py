from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import nn

from sparsedp.clipping import Capture
from sparsedp.clipping.stand_in import StandIn


class Doubling(StandIn):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * self.own(*args, **kwargs)


def test_stand_ins_nest_and_leave_nothing():
    layer, x = nn.Linear(2, 2), torch.randn(3, 2)
    before = layer(x)
    first, second = Doubling(layer), Doubling(layer)
    first.attach()
    second.attach()
    assert torch.allclose(layer(x), 4 * before)
    second.detach()
    assert torch.allclose(layer(x), 2 * before)
    first.detach()
    assert torch.equal(layer(x), before)
    assert "forward" not in vars(layer)


def test_a_forward_set_on_the_instance_comes_back():
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: x + 1
    own = layer.forward
    stand_in = Doubling(layer)
    stand_in.attach()
    assert torch.equal(layer(torch.ones(1)), torch.full((1,), 4.0))
    stand_in.detach()
    assert layer.forward is own


def test_one_that_was_covered_by_somebody_else_is_left_in_place():
    layer = nn.Linear(2, 2)
    stand_in = Doubling(layer)
    stand_in.attach()
    layer.forward = theirs = lambda x: x
    stand_in.detach()
    assert layer.forward is theirs


def model() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2), nn.LayerNorm(2))


def test_a_copy_is_a_plain_module():
    original = model()
    capture = Capture(original, loss_reduction="mean")
    duplicate = copy.deepcopy(original)
    ids = torch.tensor([1, 4])
    assert torch.equal(duplicate(ids), original(ids))
    with torch.no_grad():
        duplicate[1].weight.zero_()
        duplicate[1].bias.zero_()
    assert not torch.equal(duplicate(ids), original(ids)) or not original(ids).any()
    duplicate(ids).square().sum().backward()
    assert duplicate[0].weight.grad is not None
    assert capture.take() == []
    assert original[0].weight.grad is None


def test_a_saved_module_is_a_plain_module():
    original = model()
    Capture(original, loss_reduction="mean")
    file = io.BytesIO()
    torch.save(original, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    ids = torch.tensor([1, 4])
    assert torch.equal(loaded(ids), original(ids))
    loaded(ids).square().sum().backward()
    assert loaded[0].weight.grad is not None
