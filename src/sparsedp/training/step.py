"""One private step: select, mask, clip, sum, round, noise. Each arrow of the flow is a function with a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsedp.clipping import Captured
from sparsedp.core.arrays import F32, F64, I64
from sparsedp.core.observing import draw
from sparsedp.randomness import NoiseSource
from sparsedp.randomness.lattice import lattice_of, release_on_lattice
from sparsedp.rows import RowGradient, RowSpace
from sparsedp.selection import Batch, Rule, Selected
from sparsedp.training.batch import CLIP_SLACK, LogicalBatch, ScoredBatch, clip_share, most_in_float32


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
    noise of all other rows before they are read (see ``LazyNoise``).
    """

    def __init__(
        self,
        rule: Rule,
        dense: Mapping[str, Tensor],
        source: NoiseSource,
        charge: Callable[[], None],
        *,
        lazy: bool = False,
    ) -> None:
        self._rule = rule
        self._dense = dense
        self._source = source
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
        return StepSums(self._rule, selected, self._dense, lazy=self._lazy)

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

    A table whose rows all get noise has sums for its touched rows only.
    """

    def __init__(
        self, rule: Rule, selected: Selected, dense: Mapping[str, Tensor], *, lazy: bool = False
    ) -> None:
        self._rule = rule
        self._dense = dense
        self._lazy = lazy
        self._float32_left = most_in_float32(rule.expected_batch_size)
        """How many more examples may be summed in float32."""
        space = rule.space
        self.rows: list[I64 | None] = [*space.split(selected.rows), *[None] * len(space.always_on)]
        """Per table the selected rows; None: all of them."""
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
        first_always_on = len(self._rule.space.selectable)
        batch.accumulate_rows(survivors, weights, self._targets)
        for table_index, rows, sums in batch.row_sums(survivors, weights, first_always_on):
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
        tables: dict[str, RowGradient | Tensor] = {}
        for table_index, table in enumerate(self._rule.space.tables):
            rows = self.rows[table_index]
            if rows is not None:
                values = self._table(flat, table_index)
                if table_index in self.masks:
                    values *= self.masks[table_index][1]
            elif self._lazy:
                rows, sums = touched[table_index]
                values = noise.release_rows(rows, sums)
            else:
                values = noise.release_table(table.rows, table.dim, *touched[table_index])
            grad = torch.from_numpy(values)
            tables[table.name] = grad if rows is None else RowGradient(torch.from_numpy(rows), grad)
        return self._step_gradient(self._split_dense(flat), tables)

    def _step_gradient(
        self, dense: dict[str, Tensor], tables: dict[str, RowGradient | Tensor]
    ) -> StepGradient:
        space = self._rule.space
        row_counts = {
            table.name: table.rows if rows is None else rows.size
            for table, rows in zip(space.tables, self.rows, strict=True)
        }
        size = sum(row_counts[table.name] * table.dim for table in space.tables)
        for _, mask in self.masks.values():
            size += int(np.count_nonzero(mask)) - mask.size
        return StepGradient(
            dense=dense,
            tables=tables,
            rows_per_table=row_counts,
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


def step_lattice(rule: Rule, coordinates: int) -> float:
    """The lattice of a step's sums, from public numbers only (0: no noise); refuses noise beyond its range."""
    std = rule.gradient_noise_multiplier * rule.sensitivity
    if std == 0:
        return 0.0
    return lattice_of(std=std, sensitivity=rule.sensitivity, coordinates=max(coordinates, 1))


class Noise:
    """The Gaussian mechanism on a step's sums, on a lattice that depends on public numbers only."""

    def __init__(self, rule: Rule, coordinates: int, source: NoiseSource) -> None:
        self.std = rule.gradient_noise_multiplier * rule.sensitivity
        self.divisor = rule.expected_batch_size
        self._stream = source.noise
        self.lattice = step_lattice(rule, coordinates)

    @draw
    def release(self, sums: F64) -> F32:
        """``(sums + noise) / B``."""
        if self.std == 0:
            return (sums / self.divisor).astype(np.float32)
        out = np.empty(sums.size, dtype=np.float32)
        self._fill(out, sums)
        return out

    @draw
    def release_rows(self, rows: I64, sums: F64) -> F32:
        """``(sums + noise) / B`` for these rows; the noise of all others is pending."""
        return self.release(sums.ravel()).reshape(sums.shape)

    @draw
    def release_table(self, rows: int, dim: int, touched: I64, sums: F64) -> F32:
        """All rows of a table: ``sums`` plus noise for the ``touched`` ones, noise alone for the others."""
        values = np.zeros((rows, dim), dtype=np.float32)
        if self.std > 0:
            self._fill(values.reshape(-1), None)
        if touched.size:  # drawn again, with their sums
            values[touched] = self.release(sums.ravel()).reshape(sums.shape)
        return values

    def _fill(self, out: F32, sums: F64 | None) -> None:
        release_on_lattice(
            out,
            sums,
            lattice=self.lattice,
            std=self.std,
            divisor=self.divisor,
            stream=self._stream,
            threads=torch.get_num_threads(),
        )


def merged_rows(first: tuple[I64, F64], second: tuple[I64, F64]) -> tuple[I64, F64]:
    """The union of both row sets, with summed values."""
    if not first[0].size:
        return second
    rows = np.union1d(first[0], second[0])
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
