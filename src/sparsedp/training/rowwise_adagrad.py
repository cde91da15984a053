"""Adagrad with one accumulator per row, as recommenders use for embedding tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class RowWiseAdagrad(Optimizer):
    """``row -= lr * g / (sqrt(sum of mean(g^2) over the steps that had the row) + eps)``.

    Takes dense or sparse gradients of two-dimensional parameters. Rows without a gradient keep weight and
    accumulator. The accumulator is a function of private gradients alone, so it costs no privacy.
    """

    takes_sparse = True

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, eps: float = 1e-10) -> None:
        if not lr >= 0 or not eps >= 0:
            raise ValueError(f"lr and eps must not be negative, got {lr} and {eps}")
        super().__init__(params, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the rows that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"], group["eps"])
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, lr: float, eps: float) -> None:
        if parameter.dim() != 2:
            raise ValueError(
                f"RowWiseAdagrad takes tables (two dimensions), got shape {tuple(parameter.shape)}"
            )
        state = self.state[parameter]
        if not state:
            state["sum"] = parameter.new_zeros(parameter.shape[0])
        if grad.is_sparse:
            grad = grad.coalesce()
            rows, values = grad.indices()[0], grad.values()
        else:
            rows, values = torch.arange(parameter.shape[0], device=grad.device), grad
        total = state["sum"].index_add_(0, rows, values.square().mean(dim=1))[rows]
        parameter.index_add_(0, rows, values / (total.sqrt() + eps).unsqueeze(1), alpha=-lr)
