"""The click model of the FEST paper (its section 4.1.1 and appendix D.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsedp.core.criteo import embedding_dim
from sparsedp.core.tables import table_scales
from sparsedp.core.validation import check_non_negative
from sparsedp.data.schema import Schema
from sparsedp.models.layers import EMBEDDING_STD, check_sizes, embedding, mlp
from sparsedp.models.side_by_side import SideBySide, is_plain

HIDDEN = (598, 598, 598, 598)


def check_columns(schema: Schema) -> None:
    """Refuse data with columns that the model does not read."""
    if schema.multi_hot:
        names = ", ".join(feature.name for feature in schema.multi_hot)
        raise ValueError(f"model pctr has no multi-hot features ({names}); use dlrm")


class PCTR(nn.Module):
    """One embedding a feature and the log-transformed numbers, through four layers of 598 to one logit.

    The network reads ``table_scale`` times the rows; one number, or one for each table. At 1 a row's gradient is a
    few hundredths of the dense layers', so that the joint clipping norm, and with it the noise on the tables, is theirs.
    A scale of 20 makes the two alike, at the same joint norm; the dense layers, whose gradients are sums over
    the whole batch, do not suffer.
    """

    def __init__(
        self,
        vocabulary_sizes: Sequence[int],
        numeric: int = 13,
        *,
        dims: Sequence[int] | None = None,
        hidden: Sequence[int] = HIDDEN,
        embedding_std: float = EMBEDDING_STD,
        table_scale: float | Sequence[float] = 1.0,
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
        self.table_scales = table_scales(table_scale, len(dims))
        std = check_non_negative("embedding_std", embedding_std)
        self.embeddings = nn.ModuleList(
            embedding(rows, dim, std=std / scale)
            for rows, dim, scale in zip(vocabulary_sizes, dims, self.table_scales, strict=True)
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
        table_scale: float | Sequence[float] = 1.0,
    ) -> PCTR:
        """Build the model for a prepared folder."""
        check_columns(schema)
        sizes = schema.vocabulary_sizes
        return cls(
            sizes,
            len(schema.numeric),
            dims=dims,
            hidden=hidden,
            embedding_std=embedding_std,
            table_scale=table_scale,
        )

    @property
    def table_names(self) -> list[str]:
        """The tables in the order of their features, as ``named_modules`` names them."""
        return [f"embeddings.{column}" for column in range(len(self.embeddings))]

    @torch.no_grad()
    def rescale_output(self, scale: float, shift: float) -> None:
        """Make every logit ``scale`` times what it was, plus ``shift``."""
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        last.weight.mul_(scale)
        last.bias.mul_(scale).add_(shift)

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        """Return one logit an example from numeric (B, p) and ids (B, q)."""
        embedded = [table(ids[:, column]) for column, table in enumerate(self.embeddings)]
        scaled = zip(embedded, self.table_scales, strict=True)
        embedded = [vector if scale == 1.0 else vector * scale for vector, scale in scaled]
        logits: Tensor = self.layers(torch.cat([*embedded, numeric], dim=1)).squeeze(1)
        return logits

    @property
    def can_score(self) -> bool:
        """Whether ``score`` gives what ``forward`` does: not while anything is attached to the model."""
        return is_plain(self, self.embeddings)

    @torch.inference_mode()
    def score(self, numeric: NDArray[np.float32], ids: NDArray[np.int32], piece: int) -> Tensor:
        """What ``forward`` gives for ``piece`` rows at a time, bit for bit and without gradients: for a model in use."""
        rows, logits = SideBySide(self.embeddings, self.table_scales), []
        inputs = np.empty((min(piece, len(ids)), rows.width + numeric.shape[1]), np.float32)
        for start in range(0, len(ids), piece):
            here = ids[start : start + piece]
            rows.write(here, inputs)
            inputs[: len(here), rows.width :] = numeric[start : start + piece]
            logits.append(self.layers(torch.from_numpy(inputs[: len(here)])).squeeze(1))
        return torch.cat(logits)
