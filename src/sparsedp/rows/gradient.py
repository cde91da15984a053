"""The gradient of a table as (ids, values): its size is that of the touched rows, never of the table."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RowGradient(NamedTuple):
    """``values[n]`` is the gradient of row ``ids[n]``; all other rows have none. ``ids`` are sorted, distinct."""

    ids: Tensor
    values: Tensor

    def to(self, device: torch.device) -> RowGradient:
        """The same on a device."""
        return RowGradient(self.ids.to(device), self.values.to(device))

    def to_sparse(self, rows: int) -> Tensor:
        """A coalesced sparse tensor of the table's shape, for torch's sparse optimisers."""
        return torch.sparse_coo_tensor(
            self.ids.unsqueeze(0),
            self.values,
            (rows, self.values.shape[1]),
            is_coalesced=True,
            check_invariants=False,
        )

    @staticmethod
    def merge(parts: list[RowGradient]) -> RowGradient:
        """The sum of several row gradients of one table."""
        if len(parts) == 1:
            return parts[0]
        ids, inverse = torch.unique(torch.cat([part.ids for part in parts]), return_inverse=True)
        values = torch.cat([part.values for part in parts])
        total = values.new_zeros(ids.numel(), values.shape[1]).index_add_(0, inverse, values)
        return RowGradient(ids, total)
