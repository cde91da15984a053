"""Parameters that are no longer the ones that were made private are noticed by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.models import TwoTables
from torch import nn

from sparsedp.training.identity import ParameterIdentity


def assigned(model: TwoTables) -> None:
    model.load_state_dict({name: values.clone() for name, values in model.state_dict().items()}, assign=True)


def new_parameter(model: TwoTables) -> None:
    model.out.bias = nn.Parameter(torch.zeros(1))


def new_module(model: TwoTables) -> None:
    model.hidden = nn.Linear(8, 6)


def removed(model: TwoTables) -> None:
    del model.out.bias


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (assigned, "parameter 'large.weight'"),
        (new_parameter, "parameter 'out.bias'"),
        (removed, "parameter 'out.bias'"),
        (new_module, "module 'hidden'"),
    ],
)
def test_what_was_replaced_is_named(change: Callable[[TwoTables], None], name: str) -> None:
    model = TwoTables()
    identity = ParameterIdentity(model)
    identity.check()
    change(model)
    with pytest.raises(RuntimeError, match=f"{name} was replaced"):
        identity.check()


def test_a_parameter_in_the_place_of_none_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False))
    identity = ParameterIdentity(model)
    model[0].bias = nn.Parameter(torch.zeros(1))
    with pytest.raises(RuntimeError, match=r"parameter '0\.bias' was replaced"):
        identity.check()


def test_what_keeps_the_objects_is_no_replacement() -> None:
    model = TwoTables()
    identity = ParameterIdentity(model)
    model.load_state_dict(TwoTables().state_dict())
    model.double()
    model.out.weight.data = torch.zeros(1, 6)
    model.head = nn.Linear(1, 1)
    identity.check()


def test_added_parameters_are_named() -> None:
    model = TwoTables()
    identity = ParameterIdentity(model)
    assert identity.added() == []
    model.head = nn.Linear(1, 1)
    assert identity.added() == ["head.weight", "head.bias"]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_was_replaced_is_found_at_every_depth(depth: int) -> None:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(depth):
        model = nn.Sequential(model)
    for replaced in ("module", "parameter"):
        identity = ParameterIdentity(model)
        parent = model
        for _ in range(depth - 1):
            parent = parent.get_submodule("0")
        if replaced == "module":
            parent[0] = nn.Linear(2, 2)  # type: ignore[index]
        else:
            parent.get_submodule("0").weight = nn.Parameter(torch.zeros(2, 2))
        path = ".".join("0" * depth) + (".weight" if replaced == "parameter" else "")
        with pytest.raises(RuntimeError, match=f"'{path}' was replaced"):
            identity.check()


def test_a_module_with_two_names_is_watched_under_both() -> None:
    model = nn.ModuleDict({"a": nn.Linear(1, 1)})
    model["b"] = model["a"]
    identity = ParameterIdentity(model)
    model["b"] = nn.Linear(1, 1)
    with pytest.raises(RuntimeError, match="module 'b' was replaced"):
        identity.check()
