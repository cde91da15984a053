"""Tensors that a module stores as attributes during its forward: an auxiliary loss may use them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, MutableSequence
from typing import Any

from torch import Tensor, nn

from sparsedp.clipping.anchor import refuse_gradient

_Slot = tuple[Any, Any]
"""A container and the key of a tensor in it."""


def tensor_attributes(module: nn.Module) -> dict[int, Tensor]:
    """The floating-point tensors among the module's attributes, by identity."""
    return {id(container[key]): container[key] for container, key in _slots(module)}


def guard_attributes(
    module: nn.Module, name: str, before: dict[int, Tensor], returned: dict[int, Tensor]
) -> None:
    """Make sure that no gradient through an attribute is lost silently.

    The parameters of the module require no gradient during its forward, so a loss on an attribute that the
    forward has set would not reach them. An attribute that is also returned is replaced by its traced tensor in
    ``returned`` (by the identity of the original); any other raises when a training pass goes through it.
    Attributes that existed ``before`` are left alone.
    """
    for container, key in list(_slots(module)):
        value = container[key]
        if id(value) in returned:
            container[key] = returned[id(value)]
        elif id(value) not in before:
            message = (
                f"module {name!r}: the loss uses its attribute {_attribute_of(module, container, key)!r}, where "
                "per-example gradients cannot be seen; return the value from forward instead"
            )
            container[key] = refuse_gradient(value, message)


def _slots(module: nn.Module) -> Iterator[_Slot]:
    """The attributes that hold tensors, directly or in a list or dictionary."""
    attributes = vars(module)
    for name in [name for name in attributes if not (name.startswith("_") and name in _TORCH_ATTRIBUTES)]:
        value = attributes[name]
        if _may_carry_gradient(value):
            yield attributes, name
        elif isinstance(value, MutableSequence):
            yield from ((value, n) for n, item in enumerate(value) if _may_carry_gradient(item))
        elif isinstance(value, MutableMapping):
            yield from ((value, key) for key, item in value.items() if _may_carry_gradient(item))


_TORCH_ATTRIBUTES = frozenset(vars(nn.Module()))


def _may_carry_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not isinstance(value, nn.Parameter)


def _attribute_of(module: nn.Module, container: Any, key: Any) -> str:
    attributes = vars(module)
    if container is attributes:
        return str(key)
    return next(name for name, value in attributes.items() if value is container)
