"""Lazy noise: DP-SGD, or FEST, that adds the noise of untouched rows only when they are next read."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from sparsedp.clipping import Capture, Table
from sparsedp.core.arrays import I64
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowGradient
from sparsedp.training import lazy_parameter
from sparsedp.training.lazy_table import LazyTable

_NO_ROWS: I64 = np.empty(0, dtype=np.int64)
_NOT_PLAIN = ("momentum", "weight_decay", "dampening", "nesterov", "maximize")


class LazyNoise:
    """The noise that is pending on a model's tables.

    Guarantee and event: those of DP-SGD, or of FEST where the rows to train were chosen, for the final model only.
    Proof: plain SGD adds to a trained row the sum over steps of ``lr_t * release_t``. Where no example touched the
    row, ``release_t`` is noise alone and independent of everything else, so its sum over such steps may be drawn at
    once, at any time before the row is read; ``LazyTable`` states how floating-point rounding is hidden, and what
    remains of it. A row that is not trained keeps its first value.

    ``lr_t`` is read from the optimiser's group at each step: schedulers write to it and ``load_state_dict``
    replaces it. The tables' updates are made here, not by the optimiser.
    """

    def __init__(self, capture: Capture, optimizers: Sequence[Optimizer], source: NoiseSource) -> None:
        self.tables: Mapping[str, Table] = capture.tables
        self._groups = {
            name: _Group(name, table.parameter, optimizers) for name, table in self.tables.items()
        }
        for name, table in self.tables.items():
            _refuse_hooks(name, table.parameter)
        _refuse_shared([*capture.dense.values(), *(table.parameter for table in self.tables.values())])
        self._tables = {
            name: LazyTable(name, table.parameter, source.noise, _NO_ROWS)
            for name, table in self.tables.items()
        }

    def train(self, rows: Mapping[str, I64]) -> None:
        """Before the first step: train these rows (sorted) of the tables that are named, all of the others."""
        for name, table in self._tables.items():
            table.train(rows.get(name))

    def attach(self) -> None:
        """From here on the tables' parameters apply their pending noise before they are read."""
        for table in self._tables.values():
            lazy_parameter.attach(table)

    def check(self) -> None:
        """Before a step is charged: refuse what lazy noise does not support."""
        for name, table in self.tables.items():
            self._groups[name].learning_rate()
            _refuse_hooks(name, table.parameter)
            if lazy_parameter.is_shared(table.parameter):
                gc.collect()  # a dead view may hold it
                if lazy_parameter.is_shared(table.parameter):
                    raise RuntimeError(
                        f"table {name!r}: a tensor or array that shares its memory is still held (from "
                        "state_dict(), .data, .detach() or .numpy()); it would show rows whose noise is pending. "
                        "Keep a copy of it instead (.clone()), or leave out lazy=True"
                    )

    def step(self, std: float, gradients: Mapping[str, RowGradient]) -> None:
        """After the wrapped optimisers: move the touched rows; on all others this step's noise is pending.

        ``gradients`` are the released ones, divided by B, with noise of standard deviation ``std`` on every
        coordinate; a table without one was not touched. They are not stored on ``.grad``, which would show the
        touched rows.
        """
        for name, table in self._tables.items():
            gradient = gradients.get(name) or _no_rows(self.tables[name].dim)
            table.step(self._groups[name].learning_rate(), std, gradient)

    def apply_pending_noise(self, name: str, rows: I64) -> None:
        """Bring distinct ``rows`` of a table up to date."""
        self._tables[name].apply_pending_noise(rows)

    def flush(self) -> None:
        """Apply all pending noise: before evaluation, state_dict, export, any release."""
        for table in self._tables.values():
            table.flush()

    @property
    def has_pending_noise(self) -> bool:
        """May any row's noise still be pending?"""
        return any(table.has_pending_noise for table in self._tables.values())

    @contextmanager
    def without_pending_noise(self) -> Iterator[None]:
        """Read the tables without their pending noise, for a checkpoint that saves it separately."""
        for table in self._tables.values():
            table.shows_pending = True
        try:
            yield
        finally:
            for table in self._tables.values():
                table.shows_pending = False

    def detach(self) -> None:
        """Apply all pending noise and turn the tables into ordinary parameters again."""
        self.flush()
        for table in self.tables.values():
            lazy_parameter.detach(table.parameter)

    def state_dict(self) -> dict[str, Any]:
        """Pending noise by table, as tensors and plain values. Not for release: it shows which rows were touched."""
        return {name: table.state_dict() for name, table in self._tables.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        for name, table in self._tables.items():
            table.load_state_dict(state[name])


def _no_rows(dim: int) -> RowGradient:
    return RowGradient(torch.empty(0, dtype=torch.int64), torch.empty(0, dim))


class _Group:
    """The parameter group of a table, by index: ``load_state_dict`` replaces the group's dict."""

    def __init__(self, name: str, parameter: nn.Parameter, optimizers: Sequence[Optimizer]) -> None:
        self._name = name
        for optimizer in optimizers:
            for index, group in enumerate(optimizer.param_groups):
                if any(parameter is member for member in group["params"]):
                    self._optimizer, self._index = optimizer, index
                    self.learning_rate()
                    return
        raise ValueError(f"optimizer does not hold table {name!r}")

    def learning_rate(self) -> float:
        """The current learning rate; refuses anything but plain SGD."""
        group = self._optimizer.param_groups[self._index]
        if type(self._optimizer) is not SGD or any(group.get(option) for option in _NOT_PLAIN):
            raise ValueError(
                f"lazy noise is exact for plain SGD only (no momentum, no decay); table {self._name!r} has "
                f"{type(self._optimizer).__name__}. Leave out lazy=True, or use AdaFEST(), with this optimiser"
            )
        return float(group["lr"])


def _refuse_hooks(name: str, parameter: nn.Parameter) -> None:
    if parameter._backward_hooks:
        raise ValueError(
            f"table {name!r}: has a gradient hook, which would change the noise of touched rows only; remove "
            "it, or leave out lazy=True"
        )


def _refuse_shared(parameters: Sequence[nn.Parameter]) -> None:
    """Refuse parameters that share memory: lazy noise gives each table its own storage, which would untie them."""
    storages = [parameter.untyped_storage().data_ptr() for parameter in parameters if parameter.numel()]
    if len(set(storages)) < len(storages):
        raise ValueError("lazy noise: two parameters share their memory; use one parameter in both places")
