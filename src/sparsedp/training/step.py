"""One private step: select, mask, clip, sum, round, noise. Each arrow of the flow is a function with a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsedp.clipping import Captured
from sparsedp.core.arrays import F32, F64, I64
from sparsedp.core.counts import distinct
from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowGradient, RowSpace
from sparsedp.selection import Batch, Rule, Selected
from sparsedp.training.batch import CLIP_SLACK, LogicalBatch, ScoredBatch, clip_share, most_in_float32
from sparsedp.training.noise import Noise
from sparsedp.training.pending_sums import PendingSums, Rows


class StepGradient(NamedTuple):
    """The noised gradient of a step, already divided by B."""

    dense: dict[str, Tensor]
    tables: dict[str, RowGradient | Tensor]
    """Selected rows for a selectable table, a dense tensor for one that is always on."""
    rows_per_table: dict[str, int]
    """Embedding rows that got noise, or have it pending."""
    gradient_size: int
    """Embedding coordinates that got noise, or have it pending."""
    dense_size: int


class PrivateStep:
    """Algorithm 1 of the FEST paper on one logical batch, which may arrive in pieces.

    Guarantee: that of the rule's selection; given the selected rows, the sum of the masked and jointly clipped
    gradients moves by at most ``rule.sensitivity`` when an example is added or removed, and every coordinate of
    it gets Gaussian noise of ``rule.gradient_noise_multiplier`` times that. Sums are taken in float64, rounded to
    a public lattice, and the noise is an integer number of lattice cells, added last (``release_on_lattice``);
    the noised sum is divided by the public ``rule.expected_batch_size``. ``charge`` is called once, before any
    noise is drawn.

    If the rule looks at no gradients, each piece is summed and freed as it arrives. Otherwise the pieces are
    stored until the batch is complete. With ``lazy`` only touched rows get noise here; the caller must add the
    noise of all other selected rows before they are read (see ``LazyNoise``). With ``pending`` the sums of selectable
    rows are added to those that wait there, and the rows whose turn it is are released.
    """

    def __init__(
        self,
        rule: Rule,
        dense: Mapping[str, Tensor],
        source: NoiseSource,
        charge: Callable[[], None],
        *,
        lazy: bool = False,
        pending: PendingSums | None = None,
    ) -> None:
        self._rule = rule
        self._dense = dense
        self._source = source
        self._pending = pending
        self._charge = charge
        self._is_charged = False
        self._lazy = lazy
        self._stored_pieces: list[Captured] = []
        self._sums: StepSums | None = None
        self.clip_factors: list[F64] = []
        """NOT PRIVATE: what each example's gradient was multiplied by."""
        self.finite: list[NDArray[np.bool_]] = []
        """NOT PRIVATE: which examples had a finite gradient."""

    @property
    def has_selected(self) -> bool:
        """The rows are chosen: pieces are summed as they arrive."""
        return self._sums is not None

    def select_unseen(self) -> None:
        """Choose the rows without looking at the batch, for a rule that does not."""
        no_examples = LogicalBatch([], self._rule.space)
        self._set_selected(self._choose(ScoredBatch(no_examples, self._rule)))

    def select_by_ids(self, batch: Batch) -> None:
        """Lines 5 to 8: choose the rows by what the whole batch reads, before its gradients are known."""
        self._charge_once()
        self._set_selected(self._choose(batch))

    def add(self, piece: Captured) -> None:
        """Sum a piece, or store it until the rows are chosen."""
        if self._sums is None:
            self._stored_pieces.append(piece)
        else:
            self._accumulate(LogicalBatch([piece], self._rule.space))

    def release(self) -> StepGradient:
        """Lines 8 and 9 for the stored pieces, then the noise."""
        self._charge_once()
        if self._sums is None:
            batch = LogicalBatch(self._stored_pieces, self._rule.space)
            self._set_selected(self._choose(ScoredBatch(batch, self._rule)))
            self._accumulate(batch)
            self._stored_pieces = []
        assert self._sums is not None
        return self._sums.release(self._source)

    def _charge_once(self) -> None:
        if not self._is_charged:
            self._charge()
            self._is_charged = True

    def _choose(self, batch: Batch) -> Selected:
        return self._rule.select(batch, self._source.selection)

    def _set_selected(self, selected: Selected) -> None:
        self._selected = selected
        self._sums = self._new_sums(selected)

    def _new_sums(self, selected: Selected) -> StepSums:
        return StepSums(self._rule, selected, self._dense, lazy=self._lazy, pending=self._pending)

    def _accumulate(self, batch: LogicalBatch) -> None:
        """Lines 8 and 9: mask, clip jointly, add to the sums."""
        assert self._sums is not None
        survivors = batch.surviving(self._selected)
        masks = self._sums.masks
        squared_norms = (
            batch.masked_squared_norms(survivors, masks) if masks else batch.squared_norms(survivors)
        )
        weights = batch.clip_weights(
            squared_norms, self._rule.max_grad_norm * clip_share(self._rule.expected_batch_size)
        )
        self._sums.add(batch, survivors, weights)
        self.clip_factors.append(batch.clip_factors)
        self.finite.append(batch.finite)


class StepSums:
    """The clipped sums of a step in float64: dense parameters and selected rows in one flat buffer.

    A table whose rows all get noise, and with ``lazy`` or ``pending`` every table, has sums for its touched rows only.
    """

    def __init__(
        self,
        rule: Rule,
        selected: Selected,
        dense: Mapping[str, Tensor],
        *,
        lazy: bool = False,
        pending: PendingSums | None = None,
    ) -> None:
        self._rule = rule
        self._dense = dense
        self._lazy = lazy
        self._pending = pending
        self._touched_only = lazy or pending is not None
        self._float32_left = most_in_float32(rule.expected_batch_size)
        """How many more examples may be summed in float32."""
        space = rule.space
        self._row_counts = row_counts(space, selected)
        selectable = [None] * len(space.selectable) if self._touched_only else space.split(selected.rows)
        self.rows: list[I64 | None] = [*selectable, *[None] * len(space.always_on)]
        """Per table the selected rows; None: all of them, or only the touched ones have sums."""
        self.masks = _coordinate_masks(space, selected, self.rows)
        sizes = [parameter.numel() for parameter in dense.values()]
        sizes += [
            0 if rows is None else rows.size * table.dim
            for table, rows in zip(space.tables, self.rows, strict=True)
        ]
        self._bounds = list(accumulate(sizes, initial=0))
        self._flat: F64 = np.zeros(self._bounds[-1])
        self._of_dense = self._split_dense(self._flat)
        self._on_device = {
            name: torch.zeros_like(parameter, dtype=torch.float64)
            for name, parameter in dense.items()
            if parameter.device.type != "cpu"
        }
        """Sums of parameters that are not in main memory are taken where they live."""
        self._targets = {
            table_index: (rows, self._table(self._flat, table_index))
            for table_index, rows in enumerate(self.rows)
            if rows is not None
        }
        self._touched: dict[int, tuple[I64, F64]] = {
            table_index: (np.empty(0, dtype=np.int64), np.empty((0, self._dim(table_index))))
            for table_index, rows in enumerate(self.rows)
            if rows is None
        }

    def add(self, batch: LogicalBatch, survivors: I64, weights: F32) -> None:
        """Add the weighted per-example gradients."""
        in_float32 = batch.size <= self._float32_left
        if in_float32:
            self._float32_left -= batch.size
        dense_weights = weights if in_float32 else weights.astype(np.float64)
        for name, out in (self._of_dense | self._on_device).items():
            batch.accumulate_dense(name, out, dense_weights)
        first_touched = 0 if self._touched_only else len(self._rule.space.selectable)
        batch.accumulate_rows(survivors, weights, self._targets)
        for table_index, rows, sums in batch.row_sums(survivors, weights, first_touched):
            self._touched[table_index] = merged_rows(self._touched[table_index], (rows, sums))

    def release(self, source: NoiseSource) -> StepGradient:
        """Round to the lattice, add noise, divide by B."""
        for table_index, (_, mask) in self.masks.items():
            self._targets[table_index][1][...] *= mask
        for name, on_device in self._on_device.items():
            self._of_dense[name].copy_(on_device)
        touched = self._touched
        self._clip_mean([sums for _, sums in touched.values()])
        noise = Noise(self._rule, self._coordinates, source)
        flat = noise.release(self._flat)
        due = [] if self._pending is None else self._take_turns(self._pending, noise)
        tables: dict[str, RowGradient | Tensor] = {}
        for table_index, table in enumerate(self._rule.space.tables):
            rows = self.rows[table_index]
            if rows is not None:
                values = self._table(flat, table_index)
                if table_index in self.masks:
                    values *= self.masks[table_index][1]
            elif table_index < len(due):
                rows, values = due[table_index]
            elif self._lazy:
                rows, sums = touched[table_index]
                values = noise.release_rows(rows, sums)
            else:
                values = noise.release_table(table.rows, table.dim, *touched[table_index])
            grad = torch.from_numpy(values)
            tables[table.name] = grad if rows is None else RowGradient(torch.from_numpy(rows), grad)
        return self._step_gradient(self._split_dense(flat), tables)

    def _take_turns(self, pending: PendingSums, noise: Noise) -> Rows:
        """The selectable rows whose turn it is, where rows wait for theirs; they alone have noise."""
        selectable = self._rule.space.selectable
        due = pending.take_turns({n: self._touched[n] for n in range(len(selectable))}, noise)
        for table, (rows, _) in zip(selectable, due, strict=True):
            self._row_counts[table.name] = rows.size
        return due

    def _step_gradient(
        self, dense: dict[str, Tensor], tables: dict[str, RowGradient | Tensor]
    ) -> StepGradient:
        space = self._rule.space
        size = sum(self._row_counts[table.name] * table.dim for table in space.tables)
        for _, mask in self.masks.values():
            size += int(np.count_nonzero(mask)) - mask.size
        return StepGradient(
            dense=dense,
            tables=tables,
            rows_per_table=self._row_counts,
            gradient_size=size,
            dense_size=self._bounds[len(self._dense)],
        )

    def _clip_mean(self, touched: Sequence[F64]) -> None:
        """WIDE's second clipping: the mean gradient, over all sums jointly, to ``rule.batch_clip``."""
        rule = self._rule
        if rule.batch_clip is None:
            return
        norm = math.sqrt(sum(float(np.vdot(part, part)) for part in (self._flat, *touched)))
        factor = min(1.0, rule.batch_clip * rule.expected_batch_size * CLIP_SLACK / max(norm, 1e-300))
        for part in (self._flat, *touched):
            part *= factor

    @property
    def _coordinates(self) -> int:
        return self._rule.space.coordinates + self._bounds[len(self._dense)]

    def _split_dense(self, flat: NDArray[np.floating]) -> dict[str, Tensor]:
        """The parts of a flat buffer that belong to the dense parameters."""
        return {
            name: torch.from_numpy(flat[self._bounds[n] : self._bounds[n + 1]]).view(parameter.shape)
            for n, (name, parameter) in enumerate(self._dense.items())
        }

    def _dim(self, table_index: int) -> int:
        return self._rule.space.tables[table_index].dim

    def _table(self, flat: NDArray[np.floating], table_index: int) -> NDArray[np.floating]:
        """The part of a flat buffer that belongs to table ``table_index``: one row per selected row."""
        n = len(self._dense) + table_index
        return flat[self._bounds[n] : self._bounds[n + 1]].reshape(-1, self._dim(table_index))


def row_counts(space: RowSpace, selected: Selected) -> dict[str, int]:
    """How many rows of each table are selected."""
    bounds = selected.rows.searchsorted(space.offsets[: len(space.selectable) + 1]).tolist()
    sizes = [end - start for start, end in pairwise(bounds)] + [table.rows for table in space.always_on]
    return {table.name: rows for table, rows in zip(space.tables, sizes, strict=True)}


def merged_rows(first: tuple[I64, F64], second: tuple[I64, F64]) -> tuple[I64, F64]:
    """The union of both row sets, with summed values."""
    if not first[0].size:
        return second
    rows = distinct(np.concatenate([first[0], second[0]]))
    sums = np.zeros((rows.size, first[1].shape[1]))
    for part_rows, part_sums in (first, second):
        sums[np.searchsorted(rows, part_rows)] += part_sums
    return rows, sums


def _coordinate_masks(
    space: RowSpace, selected: Selected, rows: list[I64 | None]
) -> dict[int, tuple[I64, F32]]:
    """Where single coordinates were selected: per table the rows and a 0/1 mask of their coordinates."""
    if selected.coordinates is None:
        return {}
    cuts = np.searchsorted(selected.coordinates, space.coordinate_offsets)
    masks = {}
    for table_index, table in enumerate(space.selectable):
        table_rows = rows[table_index]
        assert table_rows is not None
        local = (
            selected.coordinates[cuts[table_index] : cuts[table_index + 1]]
            - space.coordinate_offsets[table_index]
        )
        mask = np.zeros((table_rows.size, table.dim), dtype=np.float32)
        mask[np.searchsorted(table_rows, local // table.dim), local % table.dim] = 1.0
        masks[table_index] = (table_rows, mask)
    return masks
