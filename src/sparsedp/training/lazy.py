"""Lazy dense noise: exact DP-SGD whose rows get their noise only before they are read or released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from sparsedp.clipping import Capture, Table
from sparsedp.randomness import NoiseSource, grid_of
from sparsedp.randomness.torch_normals import normal_, round_to_grid_
from sparsedp.selection import Rule

FLUSH_ROWS = 1 << 16
"""Rows brought up to date at a time: the flush visits every row but never holds a table's worth of noise."""


class LazyNoise:
    """What noise each row is still owed.

    Plain SGD adds to a row the sum over steps of ``lr_t * noise_t``. The noise of the steps since the row
    was last brought up to date is one Gaussian of variance ``std^2 * sum lr_t^2``, so it may be added at
    once, at any time before somebody looks. Guarantee and event: those of DP-SGD, for the final model only.
    """

    def __init__(self, capture: Capture, optimizers: Sequence[Optimizer], source: NoiseSource) -> None:
        self.tables: Mapping[str, Table] = capture.tables
        self._source = source
        self._groups = {
            name: _plain_sgd_group(name, table.parameter, optimizers) for name, table in self.tables.items()
        }
        self._done = {name: torch.zeros(table.rows, dtype=torch.int32) for name, table in self.tables.items()}
        self._variance: dict[str, list[float]] = {name: [0.0] for name in self.tables}
        self._grid: dict[str, float | None] = dict.fromkeys(self.tables)

    def before_update(self, rule: Rule) -> None:
        """Write down this step's debt: every row of every table owes ``lr^2 std^2``."""
        std = rule.noise_multiplier * rule.sensitivity / rule.batch
        for name, group in self._groups.items():
            history = self._variance[name]
            history.append(history[-1] + (float(group["lr"]) * std) ** 2)
            self._grid[name] = grid_of(float(group["lr"]) * std) if std * group["lr"] > 0 else None

    def after_update(self) -> None:
        """The tables' gradients have no noise in them: they do not stay where somebody may look."""
        for table in self.tables.values():
            table.parameter.grad = None

    @torch.no_grad()
    def pay(self, name: str, rows: Tensor) -> None:
        """Bring distinct ``rows`` of a table up to date."""
        history, done = self._variance[name], self._done[name]
        steps = len(history) - 1
        late = rows[done[rows] < steps]
        if not late.numel():
            return
        variance = torch.tensor(history, dtype=torch.float64)
        std = (variance[steps] - variance[done[late].long()]).sqrt()
        weight = self.tables[name].parameter
        noise = normal_(torch.empty(late.numel(), weight.shape[1]), self._source.noise)
        values = weight[late] + noise.mul_(std.to(noise.dtype).unsqueeze(1))
        grid = self._grid[name]
        if grid is not None:
            round_to_grid_(values, grid)
        weight[late] = values.to(weight.dtype)
        done[late] = steps

    def before_read(self, name: str, ids: Tensor) -> None:
        """A layer is about to read ``ids``."""
        self.pay(name, torch.from_numpy(np.unique(ids.detach().numpy())))

    @torch.no_grad()
    def flush(self) -> None:
        """Pay every debt: before evaluation, state_dict, export, any release."""
        for name, table in self.tables.items():
            if len(self._variance[name]) == 1:
                continue
            for start in range(0, table.rows, FLUSH_ROWS):
                self.pay(name, torch.arange(start, min(start + FLUSH_ROWS, table.rows)))
            # All rows are at the same step: the history before it will not be asked for again.
            self._variance[name] = [0.0]
            self._done[name].zero_()

    @property
    def owes(self) -> bool:
        """Is any row's noise still owed?"""
        return any(len(history) > 1 for history in self._variance.values())

    def state_dict(self) -> dict[str, Any]:
        """Debts as plain tensors and floats; private, as are the un-noised rows they belong to."""
        return {"done": dict(self._done), "variance": dict(self._variance), "grid": dict(self._grid)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        for name in self.tables:
            self._done[name].copy_(state["done"][name])
            self._variance[name] = list(state["variance"][name])
            self._grid[name] = state["grid"][name]


def _plain_sgd_group(name: str, parameter: nn.Parameter, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(parameter is held for held in group["params"]):
                plain = type(optimizer) is SGD and not any(
                    group.get(option)
                    for option in ("momentum", "weight_decay", "dampening", "nesterov", "maximize")
                )
                if not plain:
                    raise ValueError(
                        f"lazy noise is exact for plain SGD only (no momentum, no decay); table {name!r} has "
                        f"{type(optimizer).__name__}. Use DPSGD() or AdaFEST() with this optimiser"
                    )
                return group
    raise ValueError(f"optimizer does not hold table {name!r}")
