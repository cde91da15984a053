"""The logical batch: the backward passes since the last step, as one set of examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsedp.clipping import Captured
from sparsedp.clipping.gradients.base import float32_sums_move
from sparsedp.core.arrays import F32, F64, I64
from sparsedp.core.compiled import compiled
from sparsedp.core.counts import SparseCounts
from sparsedp.rows import EmbeddingLookups, RowSpace, SortedLookups
from sparsedp.rows.sorted_lookups import Target
from sparsedp.selection import Rule, Selected

CLIP_SLACK = 1.0 - 2.0**-10
"""Clip slightly below the bound, so that neither float32 rounding of a norm nor the lattice exceeds it."""

LARGEST_FLOAT32_BATCH = 2048
"""Up to this expected batch size (public), products of layer inputs and output gradients are summed in float32."""


def most_in_float32(batch: float) -> int:
    """How many examples of a logical batch may be summed in float32; one Poisson batch in 10^8 is larger."""
    return int(batch + 6 * math.sqrt(batch)) + 16 if batch <= LARGEST_FLOAT32_BATCH else 0


def clip_share(batch: float) -> float:
    """Gradients are clipped to this share of C, so that with all rounding one example moves a sum by at most C."""
    return CLIP_SLACK - float32_sums_move(most_in_float32(batch))


_NOTHING: F64 = np.empty(0)
_SMALLEST_WEIGHT = 2.0**-126
"""Below this, float32 loses precision: a gradient whose norm requires a smaller weight contributes nothing."""


class LogicalBatch:
    """The examples of one step, from one or more physical batches. Nothing here may be released.

    Norms and sums are of the true per-example gradients: the scale of a mean loss is undone.
    An example with a non-finite gradient contributes nothing, neither gradient nor counts.
    """

    def __init__(self, passes: Sequence[Captured], space: RowSpace) -> None:
        self.space = space
        self.sizes = [captured.batch_size for captured in passes]
        self.size = sum(self.sizes)
        self.scales = np.empty(self.size)
        for base, captured in zip(accumulate(self.sizes, initial=0), passes, strict=False):
            self.scales[base : base + captured.batch_size] = captured.scale
        self.clip_factors = _NOTHING
        """What each example's gradient was last multiplied by, without the loss scale."""
        self._passes = list(passes)
        self._lookups = SortedLookups(space, self._unsorted_lookups(), self.size)
        self._discard_non_finite()

    def _unsorted_lookups(self) -> Mapping[str, EmbeddingLookups]:
        if len(self._passes) == 1:
            return self._passes[0].tables
        by_table: dict[str, list[EmbeddingLookups]] = {}
        base = 0
        for captured in self._passes:
            for name, lookups in captured.tables.items():
                by_table.setdefault(name, []).append(lookups.after(base))
            base += captured.batch_size
        return {name: EmbeddingLookups.concatenate(parts) for name, parts in by_table.items()}

    @cached_property
    def dense_squared_norms(self) -> F64:
        """Per example, over all dense parameters."""
        squares = np.zeros(self.size)
        base = 0
        for captured in self._passes:
            for gradient in captured.dense.values():
                squares[base : base + captured.batch_size] += gradient.squared_norms().cpu().numpy()
            base += captured.batch_size
        squares *= self.scales
        squares *= self.scales
        return squares

    def _discard_non_finite(self) -> None:
        self.finite: NDArray[np.bool_] = np.empty(self.size, dtype=np.bool_)
        self.finite.fill(True)
        # A sum of squares is finite only if all of them are: the common case costs one addition.
        table_sum = np.add.reduce(self._lookups.pair_squared_norms)
        if math.isfinite(np.add.reduce(self.dense_squared_norms) + table_sum):
            return
        squares = self.dense_squared_norms + self._lookups.example_squared_norms(self.touched)
        self.finite = np.isfinite(squares)
        self.dense_squared_norms[~self.finite] = 0.0
        finite = torch.from_numpy(self.finite)
        lookups = {
            name: table.of_examples(finite.to(table.ids.device))
            for name, table in self._unsorted_lookups().items()
        }
        self._lookups = SortedLookups(self.space, lookups, self.size)

    def contributions(self, norm: float, domain: NDArray[np.int64] | None = None) -> SparseCounts:
        """The contribution map, clipped per example to ``norm``."""
        return self._lookups.contributions(norm, self.finite, domain)

    @property
    def touched(self) -> I64:
        """Positions of all rows that the batch reads, in sorted order."""
        return np.arange(self._lookups.touched)

    def surviving(self, selected: Selected) -> I64:
        """The touched rows that are selected or in an always-on table."""
        return self._lookups.surviving(selected.rows)

    def clip_weights(self, squared_norms: F64, norm: float) -> F32:
        """What each recorded gradient is multiplied by, so that the true one has at most this ``norm``."""
        self.clip_factors, weights = np.empty(self.size), np.empty(self.size, dtype=np.float32)
        _clip(squared_norms, self.scales, self.finite, norm, self.clip_factors, weights)
        return weights

    def squared_norms(self, survivors: I64) -> F64:
        """Per example, over the dense parameters and the surviving rows: one joint norm."""
        squares = self._lookups.example_squared_norms(survivors)
        squares *= self.scales
        squares *= self.scales
        squares += self.dense_squared_norms
        return squares

    def masked_squared_norms(self, survivors: I64, masks: dict[int, tuple[I64, F32]]) -> F64:
        """The same where only single coordinates of the selectable tables survive (per table: rows, mask)."""
        always_on = survivors[self._lookups.order.rows[survivors] >= self.space.selectable_size]
        tables = self._lookups.example_squared_norms(always_on)
        for table_index, (rows, mask) in masks.items():
            tables = tables + self._lookups.masked_squared_norms(table_index, rows, mask)
        return self.dense_squared_norms + self.scales**2 * tables

    def row_sums(self, survivors: I64, weights: F32, first_table: int = 0) -> Iterator[tuple[int, I64, F64]]:
        """For each table from ``first_table`` on: its index, its surviving touched rows and their weighted sums."""
        return self._lookups.row_sums(survivors, weights, first_table)

    def accumulate_rows(self, survivors: I64, weights: F32, targets: Mapping[int, Target]) -> None:
        """Add the surviving rows' weighted sums to the targets of the tables that have one."""
        self._lookups.add_row_sums(survivors, weights, targets)

    def accumulate_dense(self, name: str, out: Tensor, weights: F32 | F64) -> None:
        """``out += sum_i weights[i] * G_i`` for the dense parameter ``name`` (see ``PerExampleGradient``)."""
        base = 0
        for captured in self._passes:
            gradient = captured.dense.get(name)
            if gradient is not None:
                own_weights = torch.from_numpy(weights[base : base + captured.batch_size])
                gradient.accumulate(out, own_weights.to(out.device))
            base += captured.batch_size


@compiled
def _clip(
    squared_norms: F64,
    scales: F64,
    finite: NDArray[np.bool_],
    bound: float,
    factors: F64,
    weights: F32,
) -> None:
    """Per example the factor ``min(1, bound / norm)``, and the weight: factor times scale."""
    for i in range(scales.size):
        norm = np.sqrt(squared_norms[i])
        factors[i] = 1.0 if norm <= bound else bound / norm
        weight = factors[i] * scales[i] if finite[i] else 0.0
        weights[i] = weight if weight >= _SMALLEST_WEIGHT else 0.0


class ScoredBatch:
    """A logical batch with the rule's public bounds: what selection rules look at."""

    def __init__(self, batch: LogicalBatch, rule: Rule) -> None:
        self._batch = batch
        self._rule = rule
        self.space = batch.space

    def contributions(self, norm: float, domain: NDArray[np.int64] | None = None) -> SparseCounts:
        """The contribution map."""
        return self._batch.contributions(norm, domain)

    def scores(self) -> SparseCounts:
        """Row norms of the mean gradient, each example clipped jointly over *all* it touches."""
        ids, norms = [np.empty(0, dtype=np.int64)], [np.empty(0)]
        for table_index, rows, sums in self.row_sums():
            ids.append(rows + self.space.offsets[table_index])
            norms.append(np.linalg.norm(sums, axis=1) / self._rule.expected_batch_size)
        return SparseCounts(np.concatenate(ids), np.concatenate(norms), self.space.selectable_size)

    def coordinate_scores(self) -> SparseCounts:
        """Absolute values of the same mean gradient, by the coordinate ids of ``RowSpace``."""
        ids, values = [np.empty(0, dtype=np.int64)], [np.empty(0)]
        for table_index, rows, sums in self.row_sums():
            dim = sums.shape[1]
            own = (rows * dim)[:, None] + np.arange(dim)
            ids.append(own.ravel() + self.space.coordinate_offsets[table_index])
            values.append(np.abs(sums).ravel() / self._rule.expected_batch_size)
        size = int(self.space.coordinate_offsets[-1])
        return SparseCounts(np.concatenate(ids), np.concatenate(values), size)

    def row_sums(self) -> Iterator[tuple[int, I64, F64]]:
        """What ``scores`` are the norms of: each selectable table's touched rows and their clipped sums."""
        batch, rule = self._batch, self._rule
        touched = batch.touched
        weights = batch.clip_weights(
            batch.squared_norms(touched), rule.max_grad_norm * clip_share(rule.expected_batch_size)
        )
        for table_index, rows, sums in batch.row_sums(touched, weights):
            if table_index < len(self.space.selectable):
                yield table_index, rows, sums
