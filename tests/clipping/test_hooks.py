"""Hooks in place of forward passes: they save what goes into a layer and the gradient that comes back."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture, UnsupportedLayerError
from sparsedp.clipping.hooks import ForwardWrapper
from sparsedp.clipping.mixing import BATCHES


class Doubling(ForwardWrapper):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * self.original_forward(*args, **kwargs)


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
    original_forward = layer.forward
    stand_in = Doubling(layer)
    stand_in.attach()
    assert torch.equal(layer(torch.ones(1)), torch.full((1,), 4.0))
    stand_in.detach()
    assert layer.forward is original_forward


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


@pytest.mark.parametrize("make", [lambda: nn.Embedding(5, 2), lambda: nn.EmbeddingBag(5, 2, mode="sum")])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([[1, 5]]), "table 'ads.clicks': id 5 is out of range, the table has 5 rows"),
        (torch.tensor([[-1, 2]]), "table 'ads.clicks': id -1 is out of range"),
        (torch.tensor([[1.0, 2.0]]), "table 'ads.clicks': ids must be int64 or int32, not torch.float32"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_bad_ids_name_their_table(make, ids, message, training):
    model = nn.ModuleDict({"ads": nn.ModuleDict({"clicks": make()})})
    Capture(model, loss_reduction="mean")
    model.train(training)
    with pytest.raises(ValueError, match=message):
        model["ads"]["clicks"](ids)
    assert model["ads"]["clicks"].weight.requires_grad


def test_an_error_in_forward_leaves_parameters_trainable():
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(2))

        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("lost")

    model = nn.Sequential(nn.Linear(3, 2), Fails())
    Capture(model, loss_reduction="mean")
    with pytest.raises(KeyError):
        model(torch.randn(4, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(4, 5))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_input_changed_in_place_afterwards_is_an_error():
    model = nn.Linear(3, 2)
    Capture(model, loss_reduction="mean")
    x = torch.randn(4, 3)
    out = model(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        out.sum().backward()
    bag, ids = nn.EmbeddingBag(5, 2), torch.tensor([[1, 2]])
    Capture(bag, loss_reduction="mean")
    out = bag(ids)
    ids.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        out.sum().backward()


def test_two_backward_passes_through_one_forward_are_an_error():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    capture = Capture(model, loss_reduction="mean")
    out = model(torch.randn(4, 3))
    out.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        out.square().sum().backward()
    assert len(capture.take()) == 1


@pytest.mark.parametrize("by_name", [False, True])
def test_only_passes_that_reach_the_parameters_are_recorded(by_name):
    """The gradient of an input is not a step's; a model whose input requires a gradient still trains."""
    model = nn.Linear(3, 2)
    capture = Capture(model, loss_reduction="sum")
    x = torch.randn(4, 3, requires_grad=True)
    out = (model(input=x) if by_name else model(x)).sum()
    torch.autograd.grad(out, x, retain_graph=True)
    out.backward(inputs=[x], retain_graph=True)
    assert capture.take() == []
    out.backward()
    assert [captured.batch_size for captured in capture.take()] == [4]


def test_arguments_by_name():
    model = nn.ModuleDict({"words": nn.Embedding(5, 3), "out": nn.Linear(3, 2), "bag": nn.EmbeddingBag(5, 2)})
    capture = Capture(model, loss_reduction="sum")
    ids = torch.tensor([[1, 2], [3, 3]])
    read = model["out"](input=model["words"](input=ids)).sum()
    (read + model["bag"](input=ids.flatten(), offsets=torch.tensor([0, 2])).sum()).backward()
    [captured] = capture.take()
    assert set(captured.dense) == {"out.weight", "out.bias"}
    assert captured.tables["words"].ids.tolist() == [1, 2, 3, 3]
    assert captured.tables["bag"].examples.tolist() == [0, 0, 1, 1]


def test_no_weight_gradient_is_computed_in_backward():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    x = torch.randn(32, 64)

    def products() -> int:
        with torch.profiler.profile() as profile:
            model(x).sum().backward()
        return sum(
            event.count for event in profile.key_averages() if event.key in ("aten::mm", "aten::addmm")
        )

    before = products()
    capture = Capture(model, loss_reduction="sum")
    for _ in range(BATCHES):  # the first batches are probed
        model(x)
    # Forward takes two products; backward one for the hidden layer's gradient and, without the capture, two
    # more for the weights.
    assert (before, products()) == (5, 3)
    capture.detach()


def test_gradient_penalties_are_refused():
    """A term of the loss that is itself a gradient: ``create_graph=True``."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    Capture(model, loss_reduction="sum")
    x = torch.randn(5, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)


@pytest.mark.filterwarnings("ignore")
def test_a_model_compiled_after_it_was_made_private_is_refused():
    model = nn.Sequential(nn.Linear(3, 2))
    Capture(model, loss_reduction="mean")
    with pytest.raises(UnsupportedLayerError, match=r"torch\.compile"):
        torch.compile(model)(torch.randn(4, 3))
