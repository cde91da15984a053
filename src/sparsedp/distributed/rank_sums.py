"""The clipped sums of one process's examples, and how they become the noised gradient of all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsedp.core.arrays import F32, F64, I64
from sparsedp.core.compiled import compiled
from sparsedp.core.counts import distinct
from sparsedp.distributed.exchange import Arrays, Exchange, Layout
from sparsedp.distributed.ownership import Ownership, Routes
from sparsedp.distributed.shards import narrow
from sparsedp.randomness import NoiseSource
from sparsedp.randomness.lattice import nearest_cell
from sparsedp.rows import RowGradient
from sparsedp.selection import Rule
from sparsedp.training.batch import CLIP_SLACK, LogicalBatch, most_in_float32
from sparsedp.training.noise import Noise, step_lattice
from sparsedp.training.step import StepGradient, merged_rows


class RankSums:
    """The clipped sums of one process's examples, and their release together with all others'."""

    masks: Mapping[int, Any] = {}

    def __init__(
        self,
        rule: Rule,
        dense: Mapping[str, Tensor],
        exchange: Exchange,
        ownership: Ownership,
        sharded: frozenset[str],
        own_selected: I64,
        selected_counts: I64,
    ) -> None:
        self._rule = rule
        self._dense = dense
        self._exchange = exchange
        self._ownership = ownership
        self._sharded = sharded
        self._own_rows = ownership.local_rows(own_selected)
        """Per selectable table, this process's selected rows."""
        always_on = [
            [len(shard.span(rank)) for shard in ownership.shards[len(rule.space.selectable) :]]
            for rank in range(exchange.size)
        ]
        self._counts: I64 = np.hstack([selected_counts, np.array(always_on, dtype=np.int64)])
        """How many rows with noise each process owns, by table."""
        self._float32_left = most_in_float32(rule.expected_batch_size)
        sizes = [parameter.numel() for parameter in dense.values()]
        self._part = -(-sum(sizes) // exchange.size)
        """How many dense coordinates each process adds noise to; the last one pads."""
        self._flat: F64 = np.zeros(self._part * exchange.size)
        bounds = np.cumsum([0, *sizes])
        self._views = {
            name: slice(begin, end)
            for name, begin, end in zip(dense, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        }
        self._on_device = {
            name: torch.zeros_like(parameter, dtype=torch.float64)
            for name, parameter in dense.items()
            if parameter.device.type != "cpu"
        }
        """Sums of parameters that are not in main memory are taken where they live."""
        self._touched: dict[int, tuple[I64, F64]] = {
            n: (np.empty(0, dtype=np.int64), np.empty((0, table.dim)))
            for n, table in enumerate(rule.space.tables)
        }

    def add(self, batch: LogicalBatch, survivors: I64, weights: F32) -> None:
        """Add the weighted per-example gradients of this process's examples."""
        in_float32 = batch.size <= self._float32_left
        if in_float32:
            self._float32_left -= batch.size
        dense_weights = weights if in_float32 else weights.astype(np.float64)
        for name in self._dense:
            out = self._on_device[name] if name in self._on_device else self._dense_sum(name)
            batch.accumulate_dense(name, out, dense_weights)
        for table_index, rows, sums in batch.row_sums(survivors, weights):
            self._touched[table_index] = merged_rows(self._touched[table_index], (rows, sums))

    def _dense_sum(self, name: str) -> Tensor:
        return torch.from_numpy(self._flat[self._views[name]]).view(self._dense[name].shape)

    def release(self, source: NoiseSource) -> StepGradient:
        """Send the sums to their owners, add noise there, send to all what all hold."""
        rule = self._rule
        for name, on_device in self._on_device.items():
            self._dense_sum(name).copy_(on_device)
        coordinates = rule.space.coordinates + sum(parameter.numel() for parameter in self._dense.values())
        lattice = step_lattice(rule, coordinates)
        # A second clipping must see the sums before they are rounded.
        received = self._send(lattice if rule.batch_clip is None else 0.0)
        sums, always_on = self._add_up(received, lattice)
        self._clip_mean([sums, *(touched for _, touched in always_on)])
        noise = Noise(rule, coordinates, source)
        flat, begin = noise.release(sums), self._part
        grads: list[tuple[I64 | None, F32]] = []
        for rows, table in zip(self._own_rows, rule.space.selectable, strict=True):
            end = begin + rows.size * table.dim
            grads.append((rows, flat[begin:end].reshape(-1, table.dim)))
            begin = end
        for n, (rows, touched) in enumerate(always_on, self._selectable):
            span = self._ownership.spans[n]
            grads.append((None, noise.release_table(len(span), touched.shape[1], rows, touched)))
        return self._step_gradient(flat[: self._part], grads)

    @property
    def _selectable(self) -> int:
        return len(self._rule.space.selectable)

    def _send(self, lattice: float) -> list[Arrays]:
        """Rows to their owners, of the dense sums a part to each process.

        A message: dense sums, number of rows of each table, rows of all tables, their sums.
        """
        shards, ranks = self._ownership.shards, self._exchange.size
        counts = np.zeros((ranks, len(shards)), dtype=np.int64)
        rows: list[Arrays] = [[np.empty(0, dtype=np.int64)] for _ in range(ranks)]
        sums: list[Arrays] = [[np.empty(0)] for _ in range(ranks)]
        for n, (touched, values) in self._touched.items():
            positions = shards[n].positions(touched)
            owners = shards[n].owners(positions)
            routes = Routes(owners, ranks)
            local = routes.split(positions - owners * shards[n].chunk)
            for peer, (own, part) in enumerate(zip(local, routes.split(values), strict=True)):
                counts[peer, n] = own.size
                rows[peer].append(own)
                sums[peer].append(part.reshape(-1))
        largest = max((shard.chunk for shard in shards), default=0)
        messages: list[Arrays] = [
            [
                in_cells(self._flat[peer * self._part : (peer + 1) * self._part], lattice, ranks),
                counts[peer],
                narrow(np.concatenate(rows[peer]), largest),
                in_cells(np.concatenate(sums[peer]), lattice, ranks),
            ]
            for peer in range(ranks)
        ]
        return self._exchange.all_to_all("sums", messages)

    def _add_up(self, received: list[Arrays], lattice: float) -> tuple[F64, list[tuple[I64, F64]]]:
        """The sums of all processes.

        First, in one array, those that are selected whatever the examples read: this process's part of the dense
        ones and all its selected rows. Then for each table that is always on the rows that were read.
        """
        sizes = [rows.size * dim for rows, dim in zip(self._own_rows, self._dims, strict=False)]
        bounds = [self._part, *(self._part + size for size in accumulate(sizes))]
        sums: F64 = np.empty(bounds[-1])
        sums[: self._part] = total_of([message[0] for message in received], lattice)
        splits = [
            (_splits(message[1], [1] * len(self._dims)), _splits(message[1], self._dims))
            for message in received
        ]
        always_on = []
        for n, dim in enumerate(self._dims):
            parts = [
                (message[2][of_rows[n]], message[3][of_sums[n]].reshape(-1, dim))
                for message, (of_rows, of_sums) in zip(received, splits, strict=True)
            ]
            if n < self._selectable:
                _, total = added(parts, dim, self._own_rows[n], lattice)
                sums[bounds[n] : bounds[n + 1]] = total.reshape(-1)
            else:
                always_on.append(added(parts, dim, None, lattice))
        return sums, always_on

    @property
    def _dims(self) -> list[int]:
        return [table.dim for table in self._rule.space.tables]

    def _clip_mean(self, parts: list[F64]) -> None:
        """WIDE's second clipping, over the sums of all owners jointly."""
        rule = self._rule
        if rule.batch_clip is None:
            return
        square = np.array([sum(float(np.vdot(part, part)) for part in parts)])
        everywhere = self._exchange.all_gather("norm", [square])
        norm = math.sqrt(sum(float(part[0]) for (part,) in everywhere))
        factor = min(1.0, rule.batch_clip * rule.expected_batch_size * CLIP_SLACK / max(norm, 1e-300))
        for part in parts:
            part *= factor

    def _step_gradient(self, own_dense: F32, grads: list[tuple[I64 | None, F32]]) -> StepGradient:
        """Send to all what all hold a copy of; rows of sharded tables stay here."""
        space, ownership = self._rule.space, self._ownership
        copied = [n for n, table in enumerate(space.tables) if table.name not in self._sharded]
        sent: list[I64] = [np.empty(0, dtype=np.int64)]
        sent += [rows + ownership.spans[n].start for n in copied if (rows := grads[n][0]) is not None]
        values = [np.empty(0, dtype=np.float32), *(grads[n][1].reshape(-1) for n in copied)]
        largest = max((space.tables[n].rows for n in copied), default=0)
        message = [own_dense, narrow(np.concatenate(sent), largest), np.concatenate(values)]
        counts = self._counts[:, copied]
        with_rows = counts @ np.array([grads[n][0] is not None for n in copied], dtype=np.int64)
        sizes = zip(
            with_rows.tolist(), (counts @ np.array(self._dims, dtype=np.int64)[copied]).tolist(), strict=True
        )
        layouts: list[Layout] = [
            [(np.float32, self._part), (message[1].dtype, rows), (np.float32, coordinates)]
            for rows, coordinates in sizes
        ]
        received = self._exchange.all_gather("release", message, layouts)
        gathered = self._gathered(copied, grads, received)
        tables: dict[str, RowGradient | Tensor] = {}
        for n, table in enumerate(space.tables):
            own_rows, own_values = gathered.get(n, grads[n])
            grad = torch.from_numpy(own_values)
            tables[table.name] = grad if own_rows is None else RowGradient(torch.from_numpy(own_rows), grad)
        flat = torch.from_numpy(np.concatenate([message[0] for message in received]))
        totals = self._counts.sum(axis=0).tolist()
        return StepGradient(
            dense={name: flat[view].view(self._dense[name].shape) for name, view in self._views.items()},
            tables=tables,
            rows_per_table={table.name: count for table, count in zip(space.tables, totals, strict=True)},
            gradient_size=sum(count * table.dim for table, count in zip(space.tables, totals, strict=True)),
            dense_size=sum(parameter.numel() for parameter in self._dense.values()),
        )

    def _gathered(
        self, copied: list[int], grads: list[tuple[I64 | None, F32]], received: list[Arrays]
    ) -> dict[int, tuple[I64 | None, F32]]:
        """The noised rows of each table that all hold, from all owners (None: all rows)."""
        dims = [self._dims[n] for n in copied]
        have_rows = [int(grads[n][0] is not None) for n in copied]
        splits = [(_splits(counts, have_rows), _splits(counts, dims)) for counts in self._counts[:, copied]]
        tables: dict[int, tuple[I64 | None, F32]] = {}
        for at, n in enumerate(copied):
            parts = [
                (message[1][of_rows[at]], message[2][of_values[at]])
                for message, (of_rows, of_values) in zip(received, splits, strict=True)
            ]
            rows = np.concatenate([own for own, _ in parts]).astype(np.int64) if have_rows[at] else None
            tables[n] = rows, np.concatenate([values for _, values in parts]).reshape(-1, dims[at])
        return tables


def _splits(counts: I64, widths: list[int]) -> list[slice]:
    """Where each table's numbers stand in one array of all of them, with ``widths`` numbers a row."""
    ends = accumulate(
        (count * width for count, width in zip(counts.tolist(), widths, strict=True)), initial=0
    )
    return [slice(begin, end) for begin, end in pairwise(ends)]


def in_cells(sums: F64, lattice: float, ranks: int) -> NDArray[Any]:
    """Sums as whole cells of the lattice, in four bytes where they fit (lattice 0: as they are).

    Beyond 2^62 / ``ranks`` cells they are cut to that, which moves no two apart: the total fits into eight bytes.
    """
    if lattice == 0.0:
        return sums
    narrow_cells = np.empty(sums.size, dtype=np.int32)
    if _fill_cells(sums, 1.0 / lattice, 2**31 - 1, narrow_cells):
        return narrow_cells
    cells = np.empty(sums.size, dtype=np.int64)
    _fill_cells(sums, 1.0 / lattice, 2**62 // ranks, cells)
    return cells


@compiled
def _fill_cells(sums: F64, per_cell: float, most: int, cells: NDArray[Any]) -> bool:
    """Round to whole cells, at most ``most`` of them; whether none had to be cut."""
    fits = True
    for n in range(sums.size):
        cell = nearest_cell(sums[n] * per_cell)
        cut = min(max(cell, -most), most)
        fits &= cut == cell
        cells[n] = cut
    return fits


def total_of(parts: list[NDArray[Any]], lattice: float) -> F64:
    """The sums of all processes: cells are added as integers, exactly (float64: sums that were not rounded)."""
    is_rounded = parts[0].dtype != np.float64
    total: NDArray[Any] = parts[0].astype(np.int64 if is_rounded else np.float64)
    for part in parts[1:]:
        total += part
    return total * lattice if is_rounded else total


def added(
    parts: list[tuple[I64, NDArray[Any]]], dim: int, rows: I64 | None, lattice: float
) -> tuple[I64, F64]:
    """Row sums of several processes added up, in ``rows`` (sorted, which must hold all of them) or the distinct ones."""
    if rows is None:
        rows = distinct(np.concatenate([own for own, _ in parts]))
    is_rounded = parts[0][1].dtype != np.float64
    total: NDArray[Any] = np.zeros((rows.size, dim), dtype=np.int64 if is_rounded else np.float64)
    for own, values in parts:  # the rows of one process are distinct
        total[np.searchsorted(rows, own)] += values
    return rows, total * lattice if is_rounded else total
