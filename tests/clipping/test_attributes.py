"""A loss on an attribute that a forward has set is refused, or exact where the attribute is also returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsedp.clipping import Capture
from sparsedp.clipping.attributes import guard_attributes, tensor_attributes


class Keeps(nn.Module):
    """Own parameters, and its output kept beside what it returns."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.where = where
        self.kept: Any = {"list": [None], "dict": {}}.get(where)

    def forward(self, x: Tensor) -> Tensor:
        h = x * self.weight
        if self.where == "attribute":
            self.kept = h * 2
        elif self.where == "list":
            self.kept[0] = h * 2
        elif self.where == "dict":
            self.kept["aux"] = h * 2
        elif self.where == "returned":
            self.kept = h
        return h

    @property
    def auxiliary(self) -> Tensor:
        found = {"list": lambda: self.kept[0], "dict": lambda: self.kept["aux"]}
        return found.get(self.where, lambda: self.kept)()


@pytest.mark.parametrize("where", ["attribute", "list", "dict"])
def test_a_loss_on_an_attribute_is_refused_in_the_backward_pass(where: str) -> None:
    model = Keeps(where)
    capture = Capture(model, loss_reduction="sum")
    out = model(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="attribute 'kept'"):
        (out.sum() + model.auxiliary.sum()).backward()
    capture.detach()


@pytest.mark.parametrize("where", ["attribute", "list", "dict"])
def test_an_attribute_that_no_loss_uses_is_no_obstacle(where: str) -> None:
    model = Keeps(where)
    capture = Capture(model, loss_reduction="sum")
    out = model(torch.ones(2, 3))
    assert model.auxiliary.detach().tolist() == [[2.0] * 3] * 2
    out.sum().backward()
    (captured,) = capture.take()
    torch.testing.assert_close(captured.dense["weight"].instantiate(), torch.ones(2, 3))
    capture.detach()


def test_an_attribute_that_is_returned_too_is_exact() -> None:
    model = Keeps("returned")
    capture = Capture(model, loss_reduction="sum")
    out = model(torch.ones(2, 3))
    (out.sum() + 2 * model.auxiliary.sum()).backward()
    (captured,) = capture.take()
    torch.testing.assert_close(captured.dense["weight"].instantiate(), torch.full((2, 3), 3.0))
    capture.detach()


def test_what_was_there_before_and_what_has_no_gradient_is_left_alone() -> None:
    module = nn.Linear(2, 2)
    old, integers = torch.ones(2), torch.arange(3)
    module.old, module.integers = old, integers  # type: ignore[assignment]
    before = tensor_attributes(module)
    assert list(before.values()) == [old]
    new, returned = torch.ones(2, requires_grad=True) * 2, torch.ones(2) * 3
    module.new, module.out = new, returned  # type: ignore[assignment]
    replacement = torch.zeros(2)
    guard_attributes(module, "layer", before, {id(returned): replacement})
    assert module.old is old
    assert module.integers is integers
    assert module.out is replacement
    with pytest.raises(RuntimeError, match=r"module 'layer': .* attribute 'new'"):
        module.new.sum().backward()  # type: ignore[operator]
