"""A table's parameter under lazy noise: every read sees rows with their noise applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsedp.training.lazy_table import LazyTable

_SHAPE_AND_SWITCHES = {
    *(getattr(Tensor, name).__get__ for name in (
        "_backward_hooks", "_grad", "_post_accumulate_grad_hooks", "_version", "device", "dtype", "grad", "grad_fn",
        "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_quantized", "is_sparse", "is_sparse_csr", "itemsize",
        "layout", "names", "nbytes", "ndim", "output_nr", "requires_grad", "retains_grad", "shape", "volatile",
    ) if hasattr(Tensor, name)),
    *(getattr(Tensor, name).__set__ for name in ("grad", "requires_grad")),
    *(getattr(Tensor, name) for name in (
        "__len__", "dim", "element_size", "is_complex", "is_contiguous", "is_floating_point", "ndimension",
        "nelement", "numel", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_",
        "retain_grad", "size", "stride",
    )),
}  # fmt: skip
"""Functions that do not read the weights."""

_IDS_AT: dict[Callable[..., Any], tuple[int, str]] = {
    F.embedding: (0, "input"),
    F.embedding_bag: (0, "input"),
    torch.embedding: (1, "indices"),
    torch.embedding_bag: (1, "indices"),
}
"""Functions that read single rows, and the position and name of their argument of ids."""


class LazyParameter(nn.Parameter):
    """A parameter that applies its rows' pending noise before torch or Python reads them.

    Reading rows by id (embedding, embedding_bag) applies the noise of those rows. Anything else that can see
    weights (a state_dict of the model or of a part, ``data``, ``detach``, ``numpy``, arithmetic, deepcopy, pickle,
    ``torch.save``, ``AveragedModel``) applies the noise of all rows first. A deep copy or a pickle holds a plain
    ``nn.Parameter``. The class changes when lazy noise begins and is restored when it ends; the object, its
    memory and its name stay.

    Not seen: a second tensor or array on the same memory, with which a run refuses to train (``is_shared``), and
    code that bypasses torch's functions (``torch.utils.dlpack.to_dlpack``, C++ extensions).
    """

    lazy_table: LazyTable

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _SHAPE_AND_SWITCHES:
            read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, LazyParameter)]
            ids = _ids(func, args, kwargs) if len(read) == 1 else None
            for parameter in read:
                _apply_pending_noise(parameter.lazy_table, ids)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            copied = self.data.clone(memory_format=torch.preserve_format)
            memo[id(self)] = nn.Parameter(copied, self.requires_grad)
        copy: nn.Parameter = memo[id(self)]
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = nn.Parameter(self.data, self.requires_grad)
        vars(plain).update({name: value for name, value in vars(self).items() if name != "lazy_table"})
        return plain.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def attach(table: LazyTable) -> None:
    """Let a table's parameter apply its pending noise when it is read."""
    parameter = table.parameter
    if type(parameter) is not nn.Parameter:
        raise ValueError(
            f"table {table.name!r}: lazy noise needs a plain nn.Parameter, not {type(parameter).__name__}"
        )
    if is_shared(parameter):  # for instance the tensor that Embedding.from_pretrained was given
        parameter.data = parameter.data.clone()
    parameter.__class__ = LazyParameter
    parameter.lazy_table = table  # type: ignore[attr-defined]


def detach(parameter: nn.Parameter) -> None:
    """Make it an ordinary parameter again."""
    if isinstance(parameter, LazyParameter):
        parameter.__class__ = nn.Parameter  # type: ignore[assignment]
        del parameter.lazy_table


def is_shared(parameter: nn.Parameter) -> bool:
    """Does anything else hold the parameter's memory: a tensor, a view of it, a numpy array?"""
    with torch._C.DisableTorchFunctionSubclass():
        storage = parameter.untyped_storage()
        holders: int = torch._C._storage_Use_Count(storage._cdata)
    return holders > 2  # the parameter itself, and `storage`


def _ids(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    argument = _IDS_AT.get(func)
    if argument is None:
        return None
    position, name = argument
    ids = args[position] if len(args) > position else kwargs.get(name)
    return ids if isinstance(ids, Tensor) and not ids.is_floating_point() else None


def _apply_pending_noise(table: LazyTable, ids: Tensor | None) -> None:
    if table.shows_pending:
        return
    if ids is None:
        table.flush()
    else:
        table.apply_pending_noise_to_ids(ids)
