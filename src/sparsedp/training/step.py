"""One private step: select, mask, clip, sum, noise. Each arrow of the flow is a function with a name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsedp.randomness import NoiseSource, grid_of
from sparsedp.randomness.torch_normals import normals, round_to_grid_
from sparsedp.rows import RowGradient, RowSpace
from sparsedp.selection import Rule, Selected
from sparsedp.training.batch import LogicalBatch, ScoredBatch

Floats = NDArray[np.float32]


class StepGradient(NamedTuple):
    """The noised gradient of a step, already divided by B."""

    dense: dict[str, Tensor]
    tables: dict[str, RowGradient | Tensor]
    """Rows for a table in which rows were selected, a whole tensor for one that is always on."""
    rows_per_table: dict[str, int]
    """Embedding rows that got noise (or owe it)."""
    gradient_size: int
    """Embedding coordinates that got noise (or owe it)."""
    dense_size: int


def private_gradient(
    batch: LogicalBatch,
    rule: Rule,
    dense: Mapping[str, Tensor],
    source: NoiseSource,
    *,
    rows_owe: bool = False,
) -> StepGradient:
    """Select rows, then sum the masked and jointly clipped gradients and add noise to all that was selected.

    Guarantee: that of the rule's selection; given the selected rows the sum moves by at most
    ``rule.sensitivity`` when an example comes or goes, and every coordinate of it gets Gaussian noise of
    ``rule.noise_multiplier`` times that. Rounded to a public grid, divided by the public ``rule.batch``.
    With ``rows_owe`` the tables' gradients are those of the touched rows only; noise on the others is the
    caller's, before anybody looks (see ``LazyNoise``).
    """
    selected = rule.select(ScoredBatch(batch, rule), source.selection)
    layout = Layout(rule.space, selected, dense, noised_tables=not rows_owe)
    survivors = batch.surviving(selected)
    weights = batch.clip_weights(_squared_norms(batch, survivors, layout), rule.clip, rule.batch)
    std = rule.noise_multiplier * rule.sensitivity / rule.batch
    if rule.batch_clip is None:
        flat = _noise(layout, std, source)  # sums are added onto the noise: one pass less
        _accumulate(batch, survivors, weights, layout, flat)
    else:
        flat = np.zeros(layout.size, dtype=np.float32)
        _accumulate(batch, survivors, weights, layout, flat)
        flat *= min(1.0, rule.batch_clip / max(float(np.linalg.norm(flat.astype(np.float64))), 1e-30))
        flat += _noise(layout, std, source)
    if std > 0:
        round_to_grid_(flat, grid_of(std))
    gradient = layout.gradient(flat)
    if rows_owe:
        gradient.tables.update(_touched_rows(batch, survivors, weights, std, source))
    return gradient


class Layout:
    """Where each parameter's noised coordinates lie in one flat buffer, so that noise is drawn in bulk."""

    def __init__(
        self, space: RowSpace, selected: Selected, dense: Mapping[str, Tensor], noised_tables: bool = True
    ) -> None:
        self.space = space
        self.dense = dense
        self.rows: list[NDArray[np.int64] | None] = [
            *space.split(selected.rows),
            *[None] * len(space.always_on),
        ]
        """Per table the selected rows; None: all of them."""
        self.masks = _coordinate_masks(space, selected, self.rows)
        self.row_counts = {
            table.name: table.rows if rows is None else rows.size
            for table, rows in zip(space.tables, self.rows, strict=True)
        }
        self.coordinates = [self.row_counts[table.name] * table.dim for table in space.tables]
        self.noised = list(enumerate(self.rows)) if noised_tables else []
        sizes = [parameter.numel() for parameter in dense.values()]
        if noised_tables:
            sizes += self.coordinates
        self._bounds = list(accumulate(sizes, initial=0))
        self.size = self._bounds[-1]

    def dense_views(self, flat: Floats) -> dict[str, Tensor]:
        """The dense parameters' places in the buffer."""
        return {
            name: torch.from_numpy(flat[self._bounds[n] : self._bounds[n + 1]]).view(parameter.shape)
            for n, (name, parameter) in enumerate(self.dense.items())
        }

    def table_view(self, flat: Floats, place: int) -> Floats:
        """Table number ``place``: one line a selected row."""
        n = len(self.dense) + place
        return flat[self._bounds[n] : self._bounds[n + 1]].reshape(-1, self.space.tables[place].dim)

    def gradient(self, flat: Floats) -> StepGradient:
        """The finished buffer as gradients."""
        tables: dict[str, RowGradient | Tensor] = {}
        for place, rows in self.noised:
            values = torch.from_numpy(self.table_view(flat, place))
            name = self.space.tables[place].name
            tables[name] = values if rows is None else RowGradient(torch.from_numpy(rows), values)
        gradient_size = sum(self.coordinates)
        for place, (_, mask) in self.masks.items():
            gradient_size += int(np.count_nonzero(mask)) - self.coordinates[place]
        return StepGradient(
            dense=self.dense_views(flat),
            tables=tables,
            rows_per_table=self.row_counts,
            gradient_size=gradient_size,
            dense_size=self._bounds[len(self.dense)],
        )


def _coordinate_masks(
    space: RowSpace, selected: Selected, rows: list[NDArray[np.int64] | None]
) -> dict[int, tuple[NDArray[np.int64], Floats]]:
    """Where single coordinates were selected: per table its rows and which of their coordinates count."""
    if selected.coordinates is None:
        return {}
    cuts = np.searchsorted(selected.coordinates, space.coordinate_offsets)
    masks = {}
    for place, table in enumerate(space.selectable):
        own = rows[place]
        assert own is not None
        local = selected.coordinates[cuts[place] : cuts[place + 1]] - space.coordinate_offsets[place]
        mask = np.zeros((own.size, table.dim), dtype=np.float32)
        mask[np.searchsorted(own, local // table.dim), local % table.dim] = 1.0
        masks[place] = (own, mask)
    return masks


def _squared_norms(batch: LogicalBatch, survivors: NDArray[np.int64], layout: Layout) -> NDArray[np.float64]:
    if layout.masks:
        return batch.masked_squared_norms(survivors, layout.masks)
    return batch.squared_norms(survivors)


def _noise(layout: Layout, std: float, source: NoiseSource) -> Floats:
    """Gaussian noise on every selected coordinate, also on rows that no example touched."""
    if std == 0:
        return np.zeros(layout.size, dtype=np.float32)
    flat = normals(layout.size, std, source.noise)
    for place, (_, mask) in layout.masks.items():
        layout.table_view(flat, place)[...] *= mask
    return flat


def _accumulate(
    batch: LogicalBatch, survivors: NDArray[np.int64], weights: Floats, layout: Layout, flat: Floats
) -> None:
    """Add the weighted sums of the examples' gradients to the buffer."""
    for name, out in layout.dense_views(flat).items():
        batch.accumulate_dense(name, out, weights)
    if not layout.noised:
        return
    targets = {place: (rows, layout.table_view(flat, place)) for place, rows in layout.noised}
    batch.accumulate_rows(survivors, weights, targets)
    for place, (_, mask) in layout.masks.items():
        targets[place][1][...] *= mask


def _touched_rows(
    batch: LogicalBatch, survivors: NDArray[np.int64], weights: Floats, std: float, source: NoiseSource
) -> dict[str, RowGradient]:
    nothing = torch.empty(0, dtype=torch.int64)
    touched = {table.name: RowGradient(nothing, torch.empty(0, table.dim)) for table in batch.space.tables}
    for place, rows, sums in batch.row_sums(survivors, weights):
        noised = sums + std * source.noise.normal(sums.shape)
        touched[batch.space.tables[place].name] = RowGradient(
            torch.from_numpy(rows), torch.from_numpy(noised)
        )
    return touched
