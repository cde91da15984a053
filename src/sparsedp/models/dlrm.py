"""A click model after DLRM: embedding bags, a network over the numbers, dot products between all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsedp.core.tables import table_scales
from sparsedp.core.validation import check_non_negative
from sparsedp.data.schema import Schema
from sparsedp.models.layers import check_sizes, embedding_bag, mlp

DIM = 16
BOTTOM = (64, 32)
TOP = (256, 128)
EMBEDDING_STD = 0.1
"""Products of two rows carry the signal here: rows near zero would leave it without a gradient."""


class DLRM(nn.Module):
    """Every feature and the numbers become vectors of one width; they and their dot products go on.

    One-hot features come as columns of `ids`; each multi-hot feature as a pair (values, offsets), summed
    over a bag. Rows are multiplied by ``table_scale``, as in ``PCTR``.
    """

    def __init__(
        self,
        vocabulary_sizes: Sequence[int],
        numeric: int = 13,
        *,
        multi_hot_sizes: Sequence[int] = (),
        dim: int = DIM,
        bottom: Sequence[int] = BOTTOM,
        top: Sequence[int] = TOP,
        embedding_std: float = EMBEDDING_STD,
        table_scale: float | Sequence[float] = 1.0,
    ) -> None:
        super().__init__()
        check_sizes("vocabulary_sizes", [*vocabulary_sizes, *multi_hot_sizes])
        check_sizes("dim, bottom and top", [dim, *bottom, *top])
        self.features = len(vocabulary_sizes)
        sizes = (*vocabulary_sizes, *multi_hot_sizes)
        self.table_scales = table_scales(table_scale, len(sizes))
        std = check_non_negative("embedding_std", embedding_std)
        self.embeddings = nn.ModuleList(
            embedding_bag(rows, dim, std=std / scale)
            for rows, scale in zip(sizes, self.table_scales, strict=True)
        )
        self.bottom = mlp([numeric, *bottom, dim], last_relu=True) if numeric else None
        vectors = len(self.embeddings) + (1 if numeric else 0)
        pairs = vectors * (vectors - 1) // 2
        self.top = mlp([pairs + vectors * dim, *top, 1], last_relu=False)

    @classmethod
    def from_schema(
        cls,
        schema: Schema,
        *,
        dim: int = DIM,
        bottom: Sequence[int] = BOTTOM,
        top: Sequence[int] = TOP,
        embedding_std: float = EMBEDDING_STD,
        table_scale: float | Sequence[float] = 1.0,
    ) -> DLRM:
        """Build the model for a prepared folder."""
        multi_hot = [feature.rows for feature in schema.multi_hot]
        return cls(
            schema.vocabulary_sizes,
            len(schema.numeric),
            multi_hot_sizes=multi_hot,
            dim=dim,
            bottom=bottom,
            top=top,
            embedding_std=embedding_std,
            table_scale=table_scale,
        )

    @torch.no_grad()
    def rescale_output(self, scale: float, shift: float) -> None:
        """Make every logit ``scale`` times what it was, plus ``shift``."""
        last = self.top[-1]
        assert isinstance(last, nn.Linear)
        last.weight.mul_(scale)
        last.bias.mul_(scale).add_(shift)

    def forward(self, numeric: Tensor, ids: Tensor, *bags: tuple[Tensor, Tensor]) -> Tensor:
        """Return one logit an example from numeric (B, p), ids (B, q) and the pairs (values, offsets)."""
        if len(bags) != len(self.embeddings) - self.features:
            raise ValueError(
                f"bags must be {len(self.embeddings) - self.features} multi-hot features, got {len(bags)}"
            )
        vectors = [
            table(ids[:, column, None]) for column, table in enumerate(self.embeddings[: self.features])
        ]
        vectors += [table(*bag) for table, bag in zip(self.embeddings[self.features :], bags, strict=True)]
        vectors = [vector * scale for vector, scale in zip(vectors, self.table_scales, strict=True)]
        if self.bottom is not None:
            vectors.append(self.bottom(numeric))
        stacked = torch.stack(vectors, dim=1)
        left, right = torch.triu_indices(len(vectors), len(vectors), offset=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, left, right]
        logits: Tensor = self.top(torch.cat([stacked.flatten(1), products], dim=1)).squeeze(1)
        return logits
