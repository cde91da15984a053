"""Rows of several tables side by side in one array, for a model in use: read and scaled in one compiled loop."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparsedp.core.compiled import compiled


def is_plain(module: nn.Module, tables: Iterable[nn.Module]) -> bool:
    """Whether reading the tables' weights gives what the module's forward would read.

    Not where a forward is wrapped or has hooks, and not for tables of another class, place or type than torch's own.
    """
    tables = list(tables)
    return all(map(_is_untouched, (module, *tables))) and all(
        type(table) is nn.Embedding
        and table.max_norm is None
        and table.weight.device.type == "cpu"
        and table.weight.dtype == torch.float32
        and table.weight.is_contiguous()
        for table in tables
    )


class SideBySide:
    """The rows of tables, one after the other in the columns of an array, each table's times its scale."""

    def __init__(self, tables: Iterable[nn.Module], scales: Iterable[float]) -> None:
        weights = [table.weight for table in tables if isinstance(table, nn.Embedding)]
        self._weights = [weight.detach().numpy() for weight in weights]
        self._scales = [np.float32(scale) for scale in scales]
        self.width = sum(weight.shape[1] for weight in self._weights)

    def write(self, ids: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Write the rows of ids (n, tables) into the first columns of ``out``."""
        at = 0
        for column, (weight, scale) in enumerate(zip(self._weights, self._scales, strict=True)):
            if not _write(weight, ids[:, column], scale, out, at):
                raise IndexError(f"ids: table {column} has rows 0 to {len(weight) - 1} only")
            at += weight.shape[1]


def _is_untouched(module: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    return "forward" not in vars(module) and not any(getattr(module, name) for name in hooks)


@compiled
def _write(
    weight: NDArray[np.float32],
    ids: NDArray[np.int32],
    scale: np.float32,
    out: NDArray[np.float32],
    at: int,
) -> bool:
    """Write the rows of one table; says whether all ids were in it. Four numbers at a time are one instruction."""
    rows, width = weight.shape
    even = width // 4 * 4
    for number in range(len(ids)):
        row = ids[number]
        if row < 0 or row >= rows:
            return False
        for here in range(0, even, 4):
            first, second = weight[row, here], weight[row, here + 1]
            third, fourth = weight[row, here + 2], weight[row, here + 3]
            out[number, at + here] = first * scale
            out[number, at + here + 1] = second * scale
            out[number, at + here + 2] = third * scale
            out[number, at + here + 3] = fourth * scale
        for here in range(even, width):
            out[number, at + here] = weight[row, here] * scale
    return True
