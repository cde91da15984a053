"""A click model whose canaries have gradients of the attacker's choice: the worst that clipping lets through."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy


class CanaryClickModel(nn.Module):
    """The losses of examples (numeric, ids, label, push_in, push_out); where ``push_out`` is not zero, of canaries.

    A canary's loss is linear: ``scale`` times one random direction of the largest linear layer, ``push_out . layer(push_in)``,
    and the rows that it reads in ``columns``. So its gradient has the same direction at every step and a norm of at least
    ``scale``, is clipped, and hardly overlaps with other canaries'. All other examples have the log-loss of the model.
    """

    def __init__(self, model: nn.Module, columns: Sequence[int], scale: float) -> None:
        super().__init__()
        self.model, self.columns, self.scale = model, tuple(columns), scale
        linear = [
            (module.weight.numel(), name)
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear)
        ]
        if not linear:
            raise ValueError("audit: the model has no linear layer that canaries could push")
        self._layer = max(linear)[1]

    @property
    def layer(self) -> nn.Linear:
        """The largest linear layer."""
        layer = self.model.get_submodule(self._layer)
        assert isinstance(layer, nn.Linear)
        return layer

    def table_name(self, column: int) -> str:
        """The table that embeds a column, as ``named_modules`` names it."""
        return f"model.embeddings.{column}"

    def forward(
        self, numeric: Tensor, ids: Tensor, label: Tensor, push_in: Tensor, push_out: Tensor
    ) -> Tensor:
        """One loss an example."""
        logits: Tensor = self.model(numeric, ids)
        is_canary = (push_out != 0).any(dim=1).to(logits.dtype)
        # Less the layer of zero: the bias, which all canaries would push, has no gradient.
        moved = self.layer(push_in) - self.layer(torch.zeros_like(push_in))
        pushed: Tensor = (moved * push_out).sum(dim=1) + is_canary * self._rows(ids, logits)
        losses: Tensor = (1.0 - is_canary) * cross_entropy(logits, label, reduction="none")
        return losses + self.scale * pushed

    def _rows(self, ids: Tensor, like: Tensor) -> Tensor:
        total = torch.zeros_like(like)
        for column in self.columns:
            table = self.get_submodule(self.table_name(column))
            bag = isinstance(table, nn.EmbeddingBag)
            row = table(ids[:, column, None] if bag else ids[:, column])
            total = total + row.sum(dim=1) / math.sqrt(row.shape[1] * len(self.columns))
        return total
