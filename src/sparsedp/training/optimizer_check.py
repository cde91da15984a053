"""Which torch optimisers can apply private gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from sparsedp.clipping import Capture

SPARSE_CAPABLE = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam)


def check_optimizers(
    optimizers: Sequence[Optimizer], module: nn.Module, capture: Capture, selectable: Sequence[str]
) -> None:
    """Refuse an optimiser that cannot apply the gradients it would get, before the first step."""
    known = set(module.parameters())
    owner = {
        parameter: optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "optimizer LBFGS evaluates its closure several times a step, and a private step has one gradient; "
                "use SGD, Adagrad or Adam"
            )
    unknown = sum(parameter not in known for parameter in owner)
    if unknown:
        raise ValueError(
            f"optimizer holds {unknown} parameters that are not of the module: they would be trained on gradients "
            "without noise; put them into the module, or give them an optimiser of their own outside make_private"
        )
    trained = {**capture.dense, **{name: table.parameter for name, table in capture.tables.items()}}
    missing = [name for name, parameter in trained.items() if parameter not in owner]
    if missing:
        raise ValueError(
            f"optimizer does not hold the trainable parameters {missing}: freeze them with "
            "requires_grad_(False), or add them, since clipping counts them"
        )
    for name in selectable:
        optimizer = owner[capture.tables[name].parameter]
        takes_sparse = isinstance(optimizer, SPARSE_CAPABLE) or getattr(optimizer, "takes_sparse", False)
        if not takes_sparse:
            raise ValueError(
                f"optimizer {type(optimizer).__name__} cannot take sparse gradients, and table {name!r} gets "
                "them: give the tables SGD, Adagrad, SparseAdam or RowWiseAdagrad, and pass both optimisers "
                "as a list"
            )
        weight_decay = any(group.get("weight_decay") for group in optimizer.param_groups)
        if weight_decay:
            raise ValueError(
                f"optimizer with weight_decay cannot take the sparse gradients of table {name!r}"
            )
    for name in capture.dense:
        if isinstance(owner[capture.dense[name]], torch.optim.SparseAdam):
            raise ValueError(f"optimizer SparseAdam cannot take the dense gradient of parameter {name!r}")
