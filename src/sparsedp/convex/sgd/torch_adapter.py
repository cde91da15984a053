"""A torch model as a sparse loss, so that bias-reduced SGD can drive an embedding model.

The only file of this room that imports torch; import it by its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from sparsedp.core.arrays import F64, I64

_CHUNK = 4096


class TorchLoss:
    """`f(x, z_i) = criterion(module(inputs_i), target_i)`, with x all trainable parameters laid end to end.

    `criterion` gives one loss an example (`reduction="none"`). Embedding tables give sparse gradients
    whatever their `sparse` flag says, so a gradient costs the rows that the example reads; each example has
    its own backward pass.

    While an optimiser works, the module's parameters are views of its x: moving x moves the model, and
    nothing of the size of a table is copied. `load` ends that and leaves the module with parameters of its
    own.

    A module may only read its parameters and buffers. One that writes to them in a forward pass, like an
    embedding with `max_norm` or a layer with running statistics, would write what it has seen of the data into
    the released model, past the noise: it is refused when it is named here, or when it does so.
    """

    def __init__(
        self,
        module: nn.Module,
        criterion: Callable[[Tensor, Tensor], Tensor],
        inputs: Tensor | Sequence[Tensor],
        targets: Tensor,
    ) -> None:
        for name, child in module.named_modules():
            _check_layer(name, child)
        self._module, self._criterion = module, criterion
        self._inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        self._targets = targets
        if any(len(each) != len(targets) for each in self._inputs):
            raise ValueError("inputs must hold one entry per target")
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("module must have at least one parameter that requires a gradient")
        if len({p.dtype for p in self._parameters}) > 1:
            raise ValueError("module must keep all its trainable parameters in one precision")
        self._offsets = np.cumsum([0, *(p.numel() for p in self._parameters)])
        self._bound: F64 | None = None

    @property
    def size(self) -> int:
        """How many examples there are."""
        return len(self._targets)

    @property
    def dimension(self) -> int:
        """How many trainable numbers the module has."""
        return int(self._offsets[-1])

    def start(self) -> NDArray[np.floating]:
        """The parameters as they are, in the module's precision."""
        return torch.cat([p.detach().reshape(-1) for p in self._parameters]).cpu().numpy()

    def load(self, x: F64) -> None:
        """Give the module a copy of x as its parameters."""
        self._bind(np.array(x))
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()
        self._bound = None

    def value(self, x: F64, rows: I64) -> F64:
        """One loss an example."""
        self._bind(x)
        with torch.no_grad():
            chunks = [
                self._losses(rows[at : at + _CHUNK]).double().numpy() for at in range(0, rows.size, _CHUNK)
            ]
        return np.concatenate(chunks) if chunks else np.empty(0)

    def gradient_rows(self, x: F64, rows: I64) -> sparse.csr_array:
        """One backward pass an example."""
        self._bind(x)
        with _sparse_tables(self._module):
            gradients = [self._gradient(rows[at : at + 1]) for at in range(rows.size)]
        indptr = np.cumsum([0, *(ids.size for ids, _ in gradients)])
        ids = np.concatenate([ids for ids, _ in gradients]) if gradients else np.empty(0, dtype=np.int64)
        values = np.concatenate([values for _, values in gradients]) if gradients else np.empty(0)
        return sparse.csr_array((values, ids, indptr), shape=(rows.size, self.dimension))

    def _losses(self, rows: I64) -> Tensor:
        chosen = torch.from_numpy(np.ascontiguousarray(rows))
        before = _state(self._module)
        losses = self._criterion(
            self._module(*(each[chosen] for each in self._inputs)), self._targets[chosen]
        )
        _check_only_read(before, _state(self._module))
        if losses.shape != (rows.size,):
            raise ValueError(
                f"criterion must give one loss an example (reduction='none'), got shape {tuple(losses.shape)}"
            )
        return losses

    def _gradient(self, row: I64) -> tuple[I64, F64]:
        gradients = torch.autograd.grad(self._losses(row).sum(), self._parameters, allow_unused=True)
        parts = [
            _entries(gradient, int(offset))
            for gradient, offset in zip(gradients, self._offsets, strict=False)
            if gradient is not None
        ]
        if not parts:
            return np.empty(0, dtype=np.int64), np.empty(0)
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([values for _, values in parts])

    def _bind(self, x: F64) -> None:
        """Make the parameters views of x, which may then be moved in place."""
        if x is self._bound:
            return
        if x.shape != (self.dimension,):
            raise ValueError(f"x must have shape ({self.dimension},), got {x.shape}")
        flat = torch.from_numpy(x).to(self._parameters[0].dtype)
        ends = zip(self._parameters, self._offsets[:-1], self._offsets[1:], strict=True)
        for parameter, first, last in ends:
            parameter.data = flat[int(first) : int(last)].view(parameter.shape)
        # A copy in another precision does not follow x: bind it anew every time.
        self._bound = x if flat.data_ptr() == x.ctypes.data else None


def _check_layer(name: str, layer: nn.Module) -> None:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        raise ValueError(f"module must not mix examples, but {name!r} is a {type(layer).__name__}")
    if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return
    if layer.max_norm is not None:
        raise ValueError(
            f"max_norm must be None, but {name!r} has {layer.max_norm}: it shortens the rows that an example "
            "reads in place, which shows who was read without any noise"
        )
    if layer.scale_grad_by_freq:
        raise ValueError(
            f"scale_grad_by_freq must be False, but {name!r} has it: gradients then depend on how often the batch "
            "reads a row"
        )


def _state(module: nn.Module) -> dict[str, tuple[Tensor, int]]:
    """Every parameter and buffer, and how often it has been written to."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: (tensor, tensor._version) for name, tensor in tensors}


def _check_only_read(before: dict[str, tuple[Tensor, int]], after: dict[str, tuple[Tensor, int]]) -> None:
    for name, (tensor, version) in after.items():
        old, old_version = before.get(name, (None, 0))
        if tensor is not old or version != old_version:
            raise ValueError(
                f"module must not write to its state in a forward pass, but it wrote to {name!r}: what it wrote "
                "comes from the data, without noise"
            )


def _entries(gradient: Tensor, offset: int) -> tuple[I64, F64]:
    """The nonzero coordinates of one parameter's gradient, numbered within x."""
    if gradient.is_sparse:
        merged = gradient.coalesce()
        rows, values = merged.indices()[0], merged.values()
        width = values[0].numel() if values.numel() else 1
        ids = (rows[:, None] * width + torch.arange(width)).reshape(-1)
        return offset + ids.numpy(), values.reshape(-1).double().numpy()
    dense = gradient.reshape(-1)
    ids = dense.nonzero().reshape(-1)
    return offset + ids.numpy(), dense[ids].double().numpy()


@contextmanager
def _sparse_tables(module: nn.Module) -> Iterator[None]:
    """Embedding tables give sparse gradients within."""
    tables = [each for each in module.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
    flags = [table.sparse for table in tables]
    try:
        for table in tables:
            table.sparse = True
        yield
    finally:
        for table, flag in zip(tables, flags, strict=True):
            table.sparse = flag
