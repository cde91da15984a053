"""Which buffers of a model training has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class BufferWatch:
    """Remembers what a model's buffers held before its first forward pass.

    A buffer that has changed since may hold examples without noise (a running mean, a histogram of ids): no
    statement covers it, and it is not exported. Contents are compared, so every kind of write is seen.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before: dict[str, str] | None = None
        self._handle = module.register_forward_pre_hook(_BeforeFirstPass(self))

    def record(self) -> None:
        """Record the buffers' contents before training, unless that was done."""
        if self._before is None:
            self._before = digests(self._module)
            self._handle.remove()

    def changed(self) -> list[str]:
        """The names of the buffers that have changed, or are new."""
        if self._before is None:
            return []
        return [name for name, digest in digests(self._module).items() if self._before.get(name) != digest]

    def state_dict(self) -> dict[str, str] | None:
        """Digests by name; None before the first forward pass."""
        return self._before

    def load_state_dict(self, state: Mapping[str, str] | None) -> None:
        """Compare with the contents before the run that is resumed."""
        if state is not None:
            self._before = dict(state)
            self._handle.remove()

    def detach(self) -> None:
        """Remove the hook."""
        self._handle.remove()


class _BeforeFirstPass:
    """The hook; a copy or a pickle of the module gets one that does nothing."""

    def __init__(self, watch: BufferWatch) -> None:
        self._watch = watch

    def __call__(self, module: nn.Module, args: Any) -> None:
        self._watch.record()

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _nothing() -> Any:
    return _do_nothing


def _do_nothing(module: nn.Module, args: Any) -> None:
    """The hook of a copied module."""


def digests(module: nn.Module) -> dict[str, str]:
    """A digest of the contents of every buffer, by name."""
    return {name: _digest(buffer) for name, buffer in module.named_buffers(remove_duplicate=False)}


def _digest(buffer: Tensor) -> str:
    digest = hashlib.blake2b(f"{buffer.dtype} {tuple(buffer.shape)}".encode(), digest_size=16)
    values = buffer.detach().cpu()
    values = values if values.layout == torch.strided else values.to_dense()
    digest.update(values.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
