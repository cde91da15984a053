"""Per-example gradients of a table that is also used as a matrix: a tied input and output embedding."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from sparsedp.clipping.gradients.base import Summand
from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.outer_products import OuterProducts
from sparsedp.clipping.gradients.vectors import row_squares, upcast
from sparsedp.rows.lookups import EmbeddingLookups
from sparsedp.rows.units import Units


class ScatteredRows(Summand):
    """``G_i`` holds, in each row that example i reads, the sum of the gradients of its lookups."""

    def __init__(self, lookups: EmbeddingLookups, batch_size: int, rows: int) -> None:
        self.lookups = lookups
        self.batch_size = batch_size
        self.rows = rows

    @cached_property
    def _coalesced(self) -> tuple[Tensor, Tensor, Tensor]:
        """(examples, ids, gradients), one entry per (example, row) pair, by ascending example."""
        lookups = self.lookups
        grads = upcast(lookups.output_grads)
        if lookups.sources is not None:
            grads = grads[lookups.sources]
        if lookups.scales is not None:
            grads = grads * lookups.scales.unsqueeze(1)
        keys, inverse = torch.unique(lookups.examples * self.rows + lookups.ids, return_inverse=True)
        values = grads.new_zeros(keys.numel(), grads.shape[1]).index_add_(0, inverse, grads)
        return keys // self.rows, keys % self.rows, values

    @override
    def squared_norms(self) -> Tensor:
        examples, _, values = self._coalesced
        squares = row_squares(values)
        return squares.new_zeros(self.batch_size).index_add_(0, examples, squares)

    @override
    def select(self, examples: Tensor) -> ScatteredRows:
        new_index = examples.new_full((self.batch_size,), -1)
        new_index[examples] = torch.arange(examples.numel(), device=examples.device)
        example, ids, values = self._coalesced
        selected = new_index[example] >= 0
        lookups = EmbeddingLookups(ids[selected], new_index[example[selected]], values[selected])
        return ScatteredRows(lookups, examples.numel(), self.rows)

    @override
    def grouped(self, units: Units) -> ScatteredRows:
        return ScatteredRows(self.lookups.grouped(units), units.count, self.rows)

    @override
    def instantiate(self) -> Tensor:
        examples, ids, values = self._coalesced
        gradients = values.new_zeros(self.batch_size, self.rows, values.shape[1])
        gradients[examples, ids] = values
        return gradients

    @override
    def merge(self, others: Sequence[ScatteredRows]) -> ScatteredRows:
        lookups = EmbeddingLookups.concatenate([self.lookups, *(other.lookups for other in others)])
        return ScatteredRows(lookups, self.batch_size, self.rows)

    @override
    def dot(self, other: Summand) -> Tensor:
        if isinstance(other, OuterProducts):
            return self._dot_outer(other)
        examples, ids, values = self._coalesced
        if isinstance(other, Materialised):
            products = (upcast(other.values)[examples, ids] * values).sum(1)
            return products.new_zeros(self.batch_size).index_add_(0, examples, products)
        return other.dot(self)

    def _padded(self) -> tuple[Tensor, Tensor]:
        """Ids (B, L) and gradients (B, L, D), padded with zero gradients of row 0."""
        examples, ids, values = self._coalesced
        counts = torch.bincount(examples, minlength=self.batch_size)
        start = counts.cumsum(0) - counts
        slot = torch.arange(examples.numel(), device=examples.device) - start[examples]
        length = int(counts.max()) if counts.numel() else 0
        padded_ids = ids.new_zeros(self.batch_size, length)
        padded = values.new_zeros(self.batch_size, length, values.shape[1])
        padded_ids[examples, slot] = ids
        padded[examples, slot] = values
        return padded_ids, padded

    def _dot_outer(self, other: OuterProducts) -> Tensor:
        """``sum over lookups n and positions t of g_t[id_n] <a_t, v_n>``."""
        a, g = other.sequences()
        ids, values = self._padded()
        gathered = torch.gather(g, 2, ids.unsqueeze(1).expand(-1, g.shape[1], -1))
        return (torch.bmm(a, values.mT) * gathered).flatten(1).sum(1)

    def _add_to(self, out: Tensor, weights: Tensor) -> None:
        examples, ids, values = self._coalesced
        scaled = values * weights[examples].unsqueeze(1)
        out.index_add_(0, ids, scaled.to(out.dtype))
