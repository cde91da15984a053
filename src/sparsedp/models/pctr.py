"""The click model of the FEST paper (its section 4.1.1 and appendix D.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsedp.core.criteo import embedding_dim
from sparsedp.data.schema import Schema
from sparsedp.models.layers import EMBEDDING_STD, check_sizes, embedding, mlp

HIDDEN = (598, 598, 598, 598)


class PCTR(nn.Module):
    """One embedding a feature and the log-transformed numbers, through four layers of 598 to one logit."""

    def __init__(
        self,
        vocabulary_sizes: Sequence[int],
        numeric: int = 13,
        *,
        dims: Sequence[int] | None = None,
        hidden: Sequence[int] = HIDDEN,
        embedding_std: float = EMBEDDING_STD,
    ) -> None:
        super().__init__()
        dims = [embedding_dim(rows) for rows in vocabulary_sizes] if dims is None else dims
        check_sizes("vocabulary_sizes", vocabulary_sizes)
        check_sizes("dims", dims)
        check_sizes("hidden", hidden)
        if len(dims) != len(vocabulary_sizes):
            raise ValueError(
                f"dims must be one a feature, got {len(dims)} for {len(vocabulary_sizes)} features"
            )
        self.embeddings = nn.ModuleList(
            embedding(rows, dim, std=embedding_std) for rows, dim in zip(vocabulary_sizes, dims, strict=True)
        )
        self.layers = mlp([sum(dims) + numeric, *hidden, 1], last_relu=False)

    @classmethod
    def from_schema(
        cls,
        schema: Schema,
        *,
        dims: Sequence[int] | None = None,
        hidden: Sequence[int] = HIDDEN,
        embedding_std: float = EMBEDDING_STD,
    ) -> PCTR:
        """Build the model for a prepared folder."""
        if schema.multi_hot:
            names = ", ".join(feature.name for feature in schema.multi_hot)
            raise ValueError(f"model pctr has no multi-hot features ({names}); use dlrm")
        sizes = schema.vocabulary_sizes
        return cls(sizes, len(schema.numeric), dims=dims, hidden=hidden, embedding_std=embedding_std)

    @property
    def table_names(self) -> list[str]:
        """The tables in the order of their features, as ``named_modules`` names them."""
        return [f"embeddings.{column}" for column in range(len(self.embeddings))]

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        """Return one logit an example from numeric (B, p) and ids (B, q)."""
        embedded = [table(ids[:, column]) for column, table in enumerate(self.embeddings)]
        logits: Tensor = self.layers(torch.cat([*embedded, numeric], dim=1)).squeeze(1)
        return logits
