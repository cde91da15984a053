"""A device that stands in for an accelerator: its tensors keep real numbers in main memory and report another device.

Every operation that mixes them with tensors of the CPU raises, as it would on an accelerator, and so does
``.numpy()``. Scalars (0-dim CPU tensors) may mix, as they may on an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "standin"
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class OtherDeviceTensor(Tensor):
    """A tensor that reports the device ``standin`` and keeps its numbers in ``numbers``."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> OtherDeviceTensor:
        tensor: OtherDeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=None if numbers.is_sparse else numbers.stride(),
            storage_offset=None if numbers.is_sparse else numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        tensor.numbers = numbers
        return tensor

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OtherDeviceTensor({self.numbers!r})"

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first")
        return self.numbers.numpy()

    def untyped_storage(self) -> Any:
        return self.numbers.untyped_storage()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if operation not in _COPIES:
            _refuse_mixtures(operation, (args, kwargs))
        target = kwargs.get("device")
        on_host = target is not None and torch.device(target).type == "cpu"
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        result = operation(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
        if operation is torch.ops.aten.copy_.default or operation._schema.name.endswith("_"):
            return args[0]
        if "out" in kwargs:
            return kwargs["out"]
        return result if on_host else tree_map(_wrapped, result)


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, OtherDeviceTensor) else value


def _wrapped(value: Any) -> Any:
    return OtherDeviceTensor(value) if isinstance(value, Tensor) else value


def _refuse_mixtures(operation: Any, values: Any) -> None:
    tensors = [value for value in tree_flatten(values)[0] if isinstance(value, Tensor)]
    host = [tensor for tensor in tensors if not isinstance(tensor, OtherDeviceTensor) and tensor.dim()]
    if host and any(isinstance(tensor, OtherDeviceTensor) for tensor in tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {operation} got {NAME}:0 and cpu"
        )


class _Backend(_DummyBackendModule):
    """Its random numbers are the CPU's."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


@cache
def other_device() -> torch.device:
    """The device; registered with torch at the first call."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)

    def made(name: str) -> Callable[..., Tensor]:
        operation = getattr(torch.ops.aten, name.partition(".")[0])
        overload = getattr(operation, name.partition(".")[2] or "default")

        def make(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Tensor:
            return OtherDeviceTensor(overload(*args, device="cpu", **kwargs))

        return make

    for name in ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step"):
        library.impl(name, made(name), "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    return torch.device(NAME, 0)


_LIBRARIES: list[Any] = []


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _numbers(target).copy_(_numbers(source))
    return target
