"""One private step of all processes together: each sums over its own examples, each row has one owner.

Every process computes norms and clip weights of its own examples, so that they are those of a single machine. Then

1. the counts of the rows that its examples read go to the rows' owners, who add them up, draw which of *their* rows
   survive and answer one byte per row (lines 5 to 8 of Algorithm 1);
2. its clipped sums, rounded to the public lattice, go to the owners: rows to theirs, of the dense parameters a W-th
   to each process (lines 9 and 10);
3. an owner adds up integers, adds noise once to everything that it owns and was selected, read or not, and divides
   by the public expected batch size of the whole (line 11);
4. what every process holds a copy of is sent to all; rows of sharded tables stay with their owner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from sparsedp.core.arrays import F32, F64, I64, Bools
from sparsedp.core.compiled import compiled
from sparsedp.core.counts import SparseCounts
from sparsedp.distributed.exchange import Arrays, Exchange
from sparsedp.distributed.ownership import Ownership, Routes
from sparsedp.distributed.shards import narrow
from sparsedp.randomness import NoiseSource, Stream
from sparsedp.randomness.lattice import nearest_cell
from sparsedp.rows import RowGradient
from sparsedp.selection import Batch, Rule, Selected
from sparsedp.selection.adafest import ContributionMap
from sparsedp.training.batch import CLIP_SLACK, LogicalBatch, ScoredBatch, most_in_float32
from sparsedp.training.step import Noise, PrivateStep, StepGradient, merged_rows, step_lattice


class DistributedStep(PrivateStep):
    """``PrivateStep`` on a logical batch whose examples are spread over processes.

    Guarantee: that of ``PrivateStep`` on the union of all processes' examples. Proof: norms, clip weights and
    contributions of an example depend on it alone and are computed where it is. Each process rounds its own sum to
    the lattice; adding an example changes the sum of one process only, so rounding moves the total no further than
    on one machine, and integers are added exactly. Survival of a row is a function of its total count and of its
    owner's stream, independent of all other rows; noise is drawn once per coordinate, by its owner. ``charge`` is
    called on all processes and returns when rank 0 has charged the step, before anyone draws.
    """

    def __init__(
        self,
        rule: Rule,
        dense: Mapping[str, Tensor],
        source: NoiseSource,
        charge: Callable[[], None],
        *,
        lazy: bool = False,
        exchange: Exchange,
        ownership: Ownership,
        sharded: frozenset[str],
        shared: Stream,
    ) -> None:
        super().__init__(rule, dense, source, charge, lazy=lazy)
        self._exchange = exchange
        self._ownership = ownership
        self._sharded = sharded
        self._shared = shared
        self._own_selected: I64 = np.empty(0, dtype=np.int64)

    @override
    def _choose(self, batch: Batch) -> Selected:
        rule, ownership = self._rule, self._ownership
        if isinstance(rule, ContributionMap):
            counts = batch.contributions(rule.contribution_norm, rule.domain)
            survives, self._own_selected = self._draw_by_owner(rule, counts)
            return Selected(counts.ids[survives])
        # All processes hold the same totals and the same stream, and choose the same rows.
        selected = rule.select(JointBatch(batch, rule, self._exchange, ownership), self._shared)
        if selected.coordinates is not None:
            raise ValueError(
                "selection: single coordinates cannot be selected over several processes; select rows"
            )
        self._own_selected = ownership.owned(selected.rows)
        return selected

    def _draw_by_owner(self, rule: ContributionMap, counts: SparseCounts) -> tuple[Bools, I64]:
        """Which of the rows counted here survive; and all surviving rows that this process owns, by its numbers."""
        exchange, ownership = self._exchange, self._ownership
        routes = Routes(ownership.owners(counts.ids), exchange.size)
        ids, values = routes.split(counts.ids), routes.split(counts.values)
        received = exchange.all_to_all("counts", [[*part] for part in zip(ids, values, strict=True)])
        numbers = [ownership.numbers(np.ascontiguousarray(part_ids)) for part_ids, _ in received]
        totals = SparseCounts.of(
            np.concatenate(numbers),
            ownership.selectable_size,
            np.concatenate([part_values for _, part_values in received]),
        )
        domain = None if rule.domain is None else ownership.owned(rule.domain)
        survivors = rule.survivors(totals, domain, self._source.selection)
        flags = [np.isin(part, survivors).astype(np.uint8) for part in numbers]
        answers = exchange.all_to_all(
            "survivors", [[part] for part in flags], [[(np.uint8, part.size)] for part in ids]
        )
        survives = routes.joined([answer for (answer,) in answers]).astype(np.bool_)
        return survives, survivors

    @override
    def _new_sums(self, selected: Selected) -> RankSums:  # type: ignore[override]
        return RankSums(
            self._rule, self._dense, self._exchange, self._ownership, self._sharded, self._own_selected
        )


class JointBatch:
    """What the examples of all processes read together. All results are private: they have no noise."""

    def __init__(self, batch: Batch, rule: Rule, exchange: Exchange, ownership: Ownership) -> None:
        self.space = batch.space
        self._divisor = rule.expected_batch_size
        self._batch = batch
        self._exchange = exchange
        self._ownership = ownership

    def contributions(self, norm: float, domain: I64 | None = None) -> SparseCounts:
        """The contribution map of all examples, in every process."""
        counts = self._batch.contributions(norm, domain)
        parts = self._exchange.all_gather("counts", [counts.ids, counts.values])
        return SparseCounts.sum(
            [SparseCounts(ids, values, counts.size) for ids, values in parts], self.space.selectable_size
        )

    def coordinate_scores(self) -> SparseCounts:
        """Refused, as ``check_supported`` does before the run."""
        raise ValueError("coordinates: single coordinates cannot be selected over several processes")

    def scores(self) -> SparseCounts:
        """Row norms of the mean gradient over all examples: owners add up a row, and tell all its norm."""
        assert isinstance(self._batch, ScoredBatch)
        touched = {n: (rows, sums) for n, rows, sums in self._batch.row_sums()}
        exchange, space = self._exchange, self.space
        ids, norms = [np.empty(0, dtype=np.int64)], [np.empty(0)]
        for table_index, table in enumerate(space.selectable):
            rows, sums = touched.get(table_index, (np.empty(0, np.int64), np.empty((0, table.dim))))
            shard = self._ownership.shards[table_index]
            routes = Routes(shard.owners(shard.positions(rows)), exchange.size)
            messages = zip(routes.split(rows), routes.split(sums), strict=True)
            received = exchange.all_to_all("scores", [[own, part.ravel()] for own, part in messages])
            distinct, total = _added(
                [(own, part.reshape(-1, table.dim)) for own, part in received], table.dim
            )
            ids.append(distinct + space.row_offsets[table_index])
            norms.append(np.linalg.norm(total, axis=1))
        parts = exchange.all_gather("scores", [np.concatenate(ids), np.concatenate(norms)])
        return SparseCounts.sum(
            [SparseCounts(own, values / self._divisor, space.selectable_size) for own, values in parts],
            space.selectable_size,
        )


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
    ) -> None:
        self._rule = rule
        self._dense = dense
        self._exchange = exchange
        self._ownership = ownership
        self._sharded = sharded
        self._own_rows = ownership.local_rows(own_selected)
        """Per selectable table, this process's selected rows."""
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
        for name, view in self._views.items():
            out = torch.from_numpy(self._flat[view]).view(self._dense[name].shape)
            batch.accumulate_dense(name, out, dense_weights)
        for table_index, rows, sums in batch.row_sums(survivors, weights):
            self._touched[table_index] = merged_rows(self._touched[table_index], (rows, sums))

    def release(self, source: NoiseSource) -> StepGradient:
        """Send the sums to their owners, add noise there, send to all what all hold."""
        rule = self._rule
        coordinates = rule.space.coordinates + sum(parameter.numel() for parameter in self._dense.values())
        lattice = step_lattice(rule, coordinates)
        # A second clipping must see the sums before they are rounded.
        received = self._send(lattice if rule.batch_clip is None else 0.0)
        dense, tables = self._add_up(received, lattice)
        self._clip_mean([dense, *(sums for _, sums in tables)])
        noise = Noise(rule, coordinates, source)
        flat = noise.release(np.concatenate([dense, *(s.ravel() for _, s in tables[: self._selectable])]))
        own_dense, begin = flat[: self._part], self._part
        grads: list[tuple[I64 | None, F32]] = []
        for n, (rows, sums) in enumerate(tables):
            if n < self._selectable:
                grads.append((rows, flat[begin : begin + sums.size].reshape(sums.shape)))
                begin += sums.size
            else:
                span = self._ownership.spans[n]
                grads.append((None, noise.release_table(len(span), sums.shape[1], rows, sums)))
        return self._step_gradient(own_dense, grads)

    @property
    def _selectable(self) -> int:
        return len(self._rule.space.selectable)

    def _send(self, lattice: float) -> list[Arrays]:
        """Rows to their owners, of the dense sums a part to each process."""
        ownership, ranks = self._ownership, self._exchange.size
        messages: list[Arrays] = [[part] for part in np.split(self._flat, ranks)]
        for n, (rows, sums) in self._touched.items():
            shard = ownership.shards[n]
            positions = shard.positions(rows)
            owners = shard.owners(positions)
            routes = Routes(owners, ranks)
            local = routes.split(narrow(positions - owners * shard.chunk, shard.chunk))
            for message, own, part in zip(messages, local, routes.split(sums), strict=True):
                message += [own, part.ravel()]
        for message in messages:
            message[::2] = [_in_cells(part, lattice) for part in message[::2]]
        return self._exchange.all_to_all("sums", messages)

    def _add_up(self, received: list[Arrays], lattice: float) -> tuple[F64, list[tuple[I64, F64]]]:
        """The sums of all processes: this one's part of the dense ones, and of each table its rows.

        Selectable tables: all selected rows of this process, read or not. Others: the rows that were read.
        """
        dense = np.sum([_from_cells(message[0], lattice) for message in received], axis=0)
        tables = []
        for n, table in enumerate(self._rule.space.tables):
            parts = [
                (
                    message[2 * n + 1].astype(np.int64),
                    _from_cells(message[2 * n + 2], lattice).reshape(-1, table.dim),
                )
                for message in received
            ]
            selected = self._own_rows[n] if n < self._selectable else None
            tables.append(_added(parts, table.dim, selected))
        return dense, tables

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
        counts = np.array([values.shape[0] for _, values in grads], dtype=np.int64)
        message: Arrays = [own_dense, counts]
        copied = [n for n, table in enumerate(space.tables) if table.name not in self._sharded]
        for n in copied:
            rows, values = grads[n]
            message += [
                np.empty(0, np.int64) if rows is None else rows + ownership.spans[n].start,
                values.ravel(),
            ]
        received = self._exchange.all_gather("release", message)
        flat = torch.from_numpy(np.concatenate([part[0] for part in received]))
        tables: dict[str, RowGradient | Tensor] = {}
        for n, table in enumerate(space.tables):
            own_rows, own_values = grads[n]
            if n in copied:
                at = 2 + 2 * copied.index(n)
                rows = None if own_rows is None else np.concatenate([part[at] for part in received])
                values = np.concatenate([part[at + 1] for part in received]).reshape(-1, table.dim)
            else:
                rows, values = own_rows, own_values
            grad = torch.from_numpy(values)
            tables[table.name] = grad if rows is None else RowGradient(torch.from_numpy(rows), grad)
        totals = np.sum([part[1] for part in received], axis=0).tolist()
        return StepGradient(
            dense={name: flat[view].view(self._dense[name].shape) for name, view in self._views.items()},
            tables=tables,
            rows_per_table={table.name: count for table, count in zip(space.tables, totals, strict=True)},
            gradient_size=sum(count * table.dim for table, count in zip(space.tables, totals, strict=True)),
            dense_size=sum(parameter.numel() for parameter in self._dense.values()),
        )


def _in_cells(sums: NDArray[Any], lattice: float) -> NDArray[Any]:
    """Sums as whole cells of the lattice, in four bytes where they fit (lattice 0: as they are)."""
    if lattice == 0.0:
        return sums
    cells = np.empty(sums.size, dtype=np.int64)
    largest = _fill_cells(sums, 1.0 / lattice, cells)
    return cells.astype(np.int32) if largest < 2**31 else cells


@compiled
def _fill_cells(sums: F64, per_cell: float, cells: I64) -> int:
    """Round to whole cells; the largest of them, by its size."""
    largest = 0
    for n in range(sums.size):
        cells[n] = nearest_cell(sums[n] * per_cell)
        largest = max(largest, abs(cells[n]))
    return largest


def _from_cells(cells: NDArray[Any], lattice: float) -> F64:
    """The reverse, exactly, up to 2^53 cells."""
    return cells if cells.dtype == np.float64 else cells * lattice


def _added(parts: list[tuple[I64, F64]], dim: int, rows: I64 | None = None) -> tuple[I64, F64]:
    """Row sums of several processes added up, in ``rows`` (sorted, which must hold all of them) or the distinct ones."""
    ids = np.concatenate([part_ids for part_ids, _ in parts])
    if rows is None:
        rows = np.unique(ids)
    total = np.zeros((rows.size, dim))
    for part_ids, values in parts:  # the rows of one process are distinct
        total[np.searchsorted(rows, part_ids)] += values
    return rows, total
