"""Tensors that a module keeps as attributes during its forward: an auxiliary loss may be made of them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, MutableSequence
from typing import Any

from torch import Tensor, nn

from sparsedp.clipping.anchor import refuse_gradient

_Place = tuple[Any, Any]
"""A container and the key of a tensor in it."""


def tensors_kept(module: nn.Module) -> dict[int, Tensor]:
    """The floating-point tensors among the module's attributes, by identity."""
    return {id(container[key]): container[key] for container, key in _places(module)}


def guard_attributes(
    module: nn.Module, name: str, before: dict[int, Tensor], returned: dict[int, Tensor]
) -> None:
    """Make sure that no gradient through an attribute is lost without a word.

    The parameters of the module require no gradient during its forward, so a loss on an attribute that the
    forward has set would not reach them. An attribute that is also returned becomes what is ``returned`` (by
    the identity of the original); any other raises when a training pass goes through it. What was there
    ``before`` is left alone.
    """
    for container, key in list(_places(module)):
        value = container[key]
        if id(value) in returned:
            container[key] = returned[id(value)]
        elif id(value) not in before:
            message = (
                f"module {name!r}: the loss uses its attribute {_attribute_of(module, container, key)!r}, where "
                "per-example gradients cannot be seen; return the value from forward instead"
            )
            container[key] = refuse_gradient(value, message)


def _places(module: nn.Module) -> Iterator[_Place]:
    """Where attributes hold tensors: directly, or in a list or dictionary."""
    own = vars(module)
    for name in [name for name in own if not (name.startswith("_") and name in _OF_TORCH)]:
        value = own[name]
        if _may_carry_gradient(value):
            yield own, name
        elif isinstance(value, MutableSequence):
            yield from ((value, n) for n, item in enumerate(value) if _may_carry_gradient(item))
        elif isinstance(value, MutableMapping):
            yield from ((value, key) for key, item in value.items() if _may_carry_gradient(item))


_OF_TORCH = frozenset(vars(nn.Module()))


def _may_carry_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not isinstance(value, nn.Parameter)


def _attribute_of(module: nn.Module, container: Any, key: Any) -> str:
    own = vars(module)
    return str(key) if container is own else next(name for name, value in own.items() if value is container)
