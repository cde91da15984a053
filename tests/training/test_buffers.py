"""Buffers that have changed since the first forward pass are found, however they were written."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsedp.training.buffers import BufferWatch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Module()
        self.child.register_buffer("mean", torch.zeros(3))
        self.child.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.child.register_buffer("flag", torch.zeros(2, dtype=torch.bool), persistent=False)
        self.child.register_buffer("narrow", torch.zeros(2, dtype=torch.bfloat16))
        self.child.register_buffer("none", None)

    def forward(self, x: Tensor) -> Tensor:
        return x


def changed_by(change: Callable[[nn.Module], None]) -> list[str]:
    model = Model()
    watch = BufferWatch(model)
    model(torch.zeros(1))
    assert watch.changed() == []
    change(model.child)
    return watch.changed()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda child: child.mean.add_(1), "child.mean"),
        (lambda child: child.mean.data.add_(1), "child.mean"),
        (lambda child: child.mean.numpy().fill(1.0), "child.mean"),
        (lambda child: setattr(child, "mean", torch.ones(3)), "child.mean"),
        (lambda child: setattr(child, "mean", torch.zeros(4)), "child.mean"),
        (lambda child: child.count.add_(1), "child.count"),
        (lambda child: child.flag.logical_not_(), "child.flag"),
        (lambda child: child.narrow.add_(1), "child.narrow"),
        (lambda child: child.register_buffer("new", torch.ones(1)), "child.new"),
        (lambda child: setattr(child, "none", torch.eye(2).to_sparse()), "child.none"),
    ],
)
def test_a_changed_buffer_is_found(change: Callable[[nn.Module], None], name: str) -> None:
    assert changed_by(change) == [name]


def test_the_same_contents_are_no_change() -> None:
    assert changed_by(lambda child: setattr(child, "mean", child.mean.clone())) == []


def test_what_is_loaded_before_the_first_pass_is_no_change() -> None:
    model = Model()
    watch = BufferWatch(model)
    model.child.mean.fill_(3.0)
    assert watch.changed() == []
    model(torch.zeros(1))
    assert watch.changed() == []


def test_a_resumed_run_compares_with_the_contents_before_the_first_run() -> None:
    first, second = Model(), Model()
    watch = BufferWatch(first)
    assert watch.state_dict() is None
    first(torch.zeros(1))
    second.child.mean.fill_(3.0)
    resumed = BufferWatch(second)
    resumed.load_state_dict(watch.state_dict())
    second(torch.zeros(1))
    assert resumed.changed() == ["child.mean"]


def test_copies_and_pickles_of_the_module_work() -> None:
    model = Model()
    watch = BufferWatch(model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied(torch.zeros(1))
    assert watch.state_dict() is None
    watch.detach()
    assert not model._forward_pre_hooks


def test_a_buffer_with_two_names_is_found_under_both() -> None:
    """Left out under one name, it would be exported under the other."""
    module = nn.Module()
    module.register_buffer("first", torch.zeros(2))
    module.register_buffer("second", module.first)
    watch = BufferWatch(module)
    watch.record()
    module.first += 1
    assert watch.changed() == ["first", "second"]
    watch.detach()
