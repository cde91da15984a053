"""Lazy dense noise: exact DP-SGD whose rows get their noise only before they are read or released."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from sparsedp.clipping import Capture, Table
from sparsedp.compiled import compiled
from sparsedp.randomness import NoiseSource, grid_of
from sparsedp.randomness.torch_normals import normals
from sparsedp.selection import Rule

FLUSH_COORDINATES = 1 << 17
"""How much of a table is brought up to date at a time: the flush visits every row but holds little noise."""


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
        self._variance = {name: array("d", [0.0]) for name in self.tables}
        """After each step the sum of ``lr^2 std^2`` up to it, since the last flush."""
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
    def pay(self, name: str, rows: NDArray[np.int64]) -> None:
        """Bring distinct ``rows`` of a table up to date."""
        history, done = np.frombuffer(self._variance[name]), self._done[name].numpy()
        steps = history.size - 1
        late = rows[done[rows] < steps]
        if not late.size:
            return
        std = np.sqrt(history[steps] - history[done[late]])
        weight = self.tables[name].parameter
        noise = normals(late.size * weight.shape[1], 1.0, self._source.noise)
        grid = self._grid[name]
        _add_noise(weight, late, std, noise.reshape(late.size, -1), 0.0 if grid is None else grid)
        done[late] = steps

    def before_read(self, name: str, ids: Tensor) -> None:
        """A layer is about to read ``ids``."""
        self.pay(name, np.unique(ids.detach().numpy()))

    @torch.no_grad()
    def flush(self) -> None:
        """Pay every debt: before evaluation, state_dict, export, any release."""
        for name, table in self.tables.items():
            if len(self._variance[name]) == 1:
                continue
            rows = max(1, FLUSH_COORDINATES // table.dim)
            for start in range(0, table.rows, rows):
                self.pay(name, np.arange(start, min(start + rows, table.rows)))
            # All rows are at the same step: the history before it will not be asked for again.
            self._variance[name] = array("d", [0.0])
            self._done[name].zero_()

    @property
    def owes(self) -> bool:
        """Is any row's noise still owed?"""
        return any(len(history) > 1 for history in self._variance.values())

    def state_dict(self) -> dict[str, Any]:
        """Debts as plain tensors and floats; private, as are the un-noised rows they belong to."""
        history = {name: list(variance) for name, variance in self._variance.items()}
        return {"done": dict(self._done), "variance": history, "grid": dict(self._grid)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        for name in self.tables:
            self._done[name].copy_(state["done"][name])
            self._variance[name] = array("d", state["variance"][name])
            self._grid[name] = state["grid"][name]


def _add_noise(
    weight: Tensor, rows: NDArray[np.int64], std: NDArray[np.float64], noise: NDArray[np.float32], grid: float
) -> None:
    """``weight[rows] += std * noise``, each row rounded to the grid (0: none)."""
    if weight.dtype in (torch.float32, torch.float64):
        _add_to_rows(weight.detach().numpy(), rows, std, noise, grid)
    else:
        values = weight[rows].float()
        _add_to_rows(values.numpy(), np.arange(rows.size), std, noise, grid)
        weight[rows] = values.to(weight.dtype)


@compiled
def _add_to_rows(
    table: NDArray[Any],
    rows: NDArray[np.int64],
    std: NDArray[np.float64],
    noise: NDArray[np.float32],
    grid: float,
) -> None:
    per_unit = 1.0 / grid if grid > 0.0 else 0.0  # exact: the grid is a power of two
    for n in range(rows.size):
        line = table[rows[n]]
        for c in range(line.size):
            value = line[c] + std[n] * noise[n, c]
            line[c] = np.rint(value * per_unit) * grid if grid > 0.0 else value


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
