"""All lookups of a batch in all tables, sorted once for counting, norms and sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsedp.core.arrays import F64, I64, Bools
from sparsedp.core.counts import SparseCounts, contains, positions_in
from sparsedp.rows.lookups import EmbeddingLookups
from sparsedp.rows.order import Order, order_by_row
from sparsedp.rows.segments import (
    GradRows,
    add_example_sums,
    add_masked_squares,
    add_row_sums,
    clipped_counts,
    pair_squares,
)
from sparsedp.rows.space import RowSpace

Target = tuple[I64 | None, NDArray[Any]]
"""Rows of a table (ascending; None: all) and the array to which their gradients are added, one row each."""

_NOTHING = np.empty(0, dtype=np.int64)
_NO_SCALES = np.empty(0, dtype=np.float32)
_ALL = np.empty(0, dtype=np.bool_)

_ONE_THREAD = 1 << 18
"""Up to this many numbers, one thread copies faster than torch's threads start."""


class SortedLookups:
    """The lookups of a batch over a row space.

    A row counts once per example, even if the example reads it several times, and its gradient is the sum over
    the example's lookups: both follow from the (row, example) pairs, which one sort makes adjacent.
    Time and memory are proportional to the lookups, never to the tables.
    """

    def __init__(self, space: RowSpace, lookups: Mapping[str, EmbeddingLookups], batch_size: int) -> None:
        self.space = space
        self.batch_size = batch_size
        by_table = [lookups.get(table.name) for table in space.tables]
        starts = list(accumulate((0 if table is None else len(table) for table in by_table), initial=0))
        row_ids, self._examples = np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1], dtype=np.int64)
        self._grad_rows: dict[int, GradRows] = {}
        for table_index, table in enumerate(by_table):
            if table is not None and len(table):
                span = slice(starts[table_index], starts[table_index + 1])
                np.add(table.ids.cpu().numpy(), space.row_offsets[table_index], out=row_ids[span])
                self._examples[span] = table.examples.cpu().numpy()
                self._grad_rows[table_index] = _grad_rows(table, starts[table_index])
        self.order: Order = order_by_row(row_ids, self._examples, space.row_offsets[-1], starts[:-1])
        self._table_rows: I64 = self.order.rows.searchsorted(space.offsets)
        """Where each table's rows begin among the touched ones, and the end."""
        self._selectable_touched = int(self._table_rows[len(space.selectable)])
        """How many of the touched rows are selectable; they come first."""

    @property
    def touched(self) -> int:
        """How many rows the batch reads."""
        return self.order.rows.size

    @cached_property
    def pair_squared_norms(self) -> F64:
        """The squared norm of each example's gradient in each row it reads."""
        order = self.order
        squares = np.empty(order.pair_example.size)
        row_offsets = order.row_pairs[self._table_rows].tolist()
        for table_index, grad_rows in self._grad_rows.items():
            first, end = row_offsets[table_index], row_offsets[table_index + 1]
            pair_squares(squares[first:end], order.pair_starts[first : end + 1], order.position, grad_rows)
        return squares

    def contributions(self, norm: float, finite: Bools, domain: I64 | None = None) -> SparseCounts:
        """The sum over examples of ``v_i * min(1, norm / ||v_i||)``, ``v_i`` binary over selectable rows.

        ``domain`` restricts the rows that count (sorted global row ids); examples that are not finite
        contribute nothing.
        """
        order = self.order
        rows = order.rows[: self._selectable_touched]
        counts, counted = np.empty(rows.size), _ALL if domain is None else contains(domain, rows)
        clipped_counts(counts, counted, order.row_pairs, order.pair_example, finite, norm)
        counted_rows, values = (rows, counts) if domain is None else (rows[counted], counts[counted])
        return SparseCounts(counted_rows, values, self.space.selectable_size)

    def surviving(self, selected: I64) -> I64:
        """The touched rows that are ``selected`` (sorted global row ids) or always on, as positions in the order."""
        rows = self.order.rows[: self._selectable_touched]
        if selected.size > rows.size:  # the smaller of the two is looked up in the larger
            chosen = np.flatnonzero(contains(selected, rows))
        else:
            chosen = positions_in(rows, selected)
            chosen = chosen[chosen >= 0]
        return np.concatenate([chosen, np.arange(self._selectable_touched, self.touched)])

    def example_squared_norms(self, survivors: I64) -> F64:
        """Per example, the squared norm of its gradient over the surviving rows."""
        sums, order = np.zeros(self.batch_size), self.order
        add_example_sums(sums, self.pair_squared_norms, survivors, order.row_pairs, order.pair_example)
        return sums

    def masked_squared_norms(self, table_index: int, rows: I64, mask: NDArray[Any]) -> F64:
        """Per example, its squared norm over single coordinates of table ``table_index``.

        ``mask[n]`` is 1 for the coordinates of row ``rows[n]`` (sorted) that count.
        """
        squares, order = np.zeros(self.batch_size), self.order
        if table_index in self._grad_rows:
            first, end = self._table_rows[table_index], self._table_rows[table_index + 1]
            add_masked_squares(
                squares,
                positions_in(rows, order.rows[first:end] - self.space.row_offsets[table_index]),
                mask,
                order.row_pairs[first : end + 1],
                order.pair_starts,
                order.pair_example,
                order.position,
                self._grad_rows[table_index],
            )
        return squares

    def add_row_sums(self, survivors: I64, weights: NDArray[Any], targets: Mapping[int, Target]) -> None:
        """Add ``sum_i weights[i] * G_i[row]`` of each surviving row to its row of its table's target.

        Tables without a target are left out.
        """
        order = self.order
        bounds = survivors.searchsorted(self._table_rows).tolist()
        for table_index, grad_rows in self._grad_rows.items():
            table_survivors = survivors[bounds[table_index] : bounds[table_index + 1]]
            if table_survivors.size and table_index in targets:
                selected, out = targets[table_index]
                add_row_sums(
                    out,
                    _NOTHING if selected is None else selected,
                    self.space.row_offsets[table_index],
                    table_survivors,
                    order.rows,
                    order.row_starts,
                    order.position,
                    self._examples,
                    weights,
                    grad_rows,
                )

    def row_sums(
        self, survivors: I64, weights: NDArray[Any], first_table: int = 0
    ) -> Iterator[tuple[int, I64, F64]]:
        """For each table: its index, its surviving touched rows and ``sum_i weights[i] * G_i[row]`` of each.

        Tables before ``first_table`` and those without a surviving touched row are left out.
        """
        bounds = survivors.searchsorted(self._table_rows).tolist()
        for table_index, (_, _, _, dim, _, _) in self._grad_rows.items():
            if table_index < first_table:
                continue
            table_survivors = survivors[bounds[table_index] : bounds[table_index + 1]]
            if table_survivors.size:
                rows = self.order.rows[table_survivors] - self.space.row_offsets[table_index]
                sums = np.zeros((table_survivors.size, dim))
                self.add_row_sums(table_survivors, weights, {table_index: (rows, sums)})
                yield table_index, rows, sums


def _grad_rows(lookups: EmbeddingLookups, base: int) -> GradRows:
    grads = lookups.output_grads.cpu()
    if grads.dtype not in (torch.float32, torch.float64):
        grads = grads.float()
    (count, dim), (stride, step) = grads.shape, grads.stride()
    if step != 1 or stride < dim:
        stride, flat = dim, _copied(grads)
    else:
        flat = grads.as_strided(((count - 1) * stride + dim,), (1,)).numpy()
    sources = _NOTHING if lookups.sources is None else lookups.sources.cpu().numpy()
    scales = _NO_SCALES if lookups.scales is None else lookups.scales.float().cpu().numpy()
    return base, flat, stride, dim, sources, scales


def _copied(grads: Tensor) -> NDArray[Any]:
    """A contiguous copy, flattened."""
    if grads.numel() > _ONE_THREAD:
        grads = grads.contiguous()
    grad_rows: NDArray[Any] = grads.numpy()
    return grad_rows.ravel()
