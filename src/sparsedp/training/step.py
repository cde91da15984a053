"""One private step: select, mask, clip, sum, noise. Each arrow of the flow is a function with a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsedp.randomness import NoiseSource, grid_of
from sparsedp.randomness.torch_normals import normals, round_to_grid_
from sparsedp.rows import RowGradient, RowSpace
from sparsedp.selection import Rule, Selected
from sparsedp.training.batch import LogicalBatch, ScoredBatch


@dataclass(frozen=True)
class StepGradient:
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
    With ``rows_owe`` the tables' gradients are those of the touched rows without noise, which the caller
    takes upon itself to add before anybody looks (see ``LazyNoise``).
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
        flat = torch.zeros(layout.size)
        _accumulate(batch, survivors, weights, layout, flat)
        flat.mul_(min(1.0, rule.batch_clip / max(float(torch.linalg.vector_norm(flat)), 1e-30)))
        flat.add_(_noise(layout, std, source))
    if std > 0:
        round_to_grid_(flat, grid_of(std))
    gradient = layout.gradient(flat)
    if rows_owe:
        gradient.tables.update(_touched_rows(batch, survivors, weights))
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
        self.noised = list(enumerate(self.rows)) if noised_tables else []
        sizes = [parameter.numel() for parameter in dense.values()]
        sizes += [self._row_count(place) * space.tables[place].dim for place, _ in self.noised]
        self._bounds = list(accumulate(sizes, initial=0))
        self.size = self._bounds[-1]

    def _row_count(self, place: int) -> int:
        rows = self.rows[place]
        return self.space.tables[place].rows if rows is None else int(rows.size)

    def dense_views(self, flat: Tensor) -> dict[str, Tensor]:
        """The dense parameters' places in the buffer."""
        return {
            name: flat[self._bounds[n] : self._bounds[n + 1]].view(parameter.shape)
            for n, (name, parameter) in enumerate(self.dense.items())
        }

    def table_view(self, flat: Tensor, place: int) -> NDArray[np.float32]:
        """Table number ``place``: one line a selected row."""
        n = len(self.dense) + place
        lines = flat.numpy()[self._bounds[n] : self._bounds[n + 1]]
        return lines.reshape(-1, self.space.tables[place].dim)

    def gradient(self, flat: Tensor) -> StepGradient:
        """The finished buffer as gradients."""
        tables: dict[str, RowGradient | Tensor] = {}
        for place, rows in self.noised:
            values = torch.from_numpy(self.table_view(flat, place))
            name = self.space.tables[place].name
            tables[name] = values if rows is None else RowGradient(torch.from_numpy(rows), values)
        return StepGradient(
            dense=self.dense_views(flat),
            tables=tables,
            rows_per_table={table.name: self._row_count(n) for n, table in enumerate(self.space.tables)},
            gradient_size=sum(self._coordinates(place) for place in range(len(self.rows))),
            dense_size=self._bounds[len(self.dense)],
        )

    def _coordinates(self, place: int) -> int:
        if place in self.masks:
            return int(self.masks[place][1].sum())
        return self._row_count(place) * self.space.tables[place].dim


def _coordinate_masks(
    space: RowSpace, selected: Selected, rows: list[NDArray[np.int64] | None]
) -> dict[int, tuple[NDArray[np.int64], Tensor]]:
    """Where single coordinates were selected: per table its rows and which of their coordinates count."""
    if selected.coordinates is None:
        return {}
    cuts = np.searchsorted(selected.coordinates, space.coordinate_offsets)
    masks = {}
    for place, table in enumerate(space.selectable):
        own = rows[place]
        assert own is not None
        local = selected.coordinates[cuts[place] : cuts[place + 1]] - space.coordinate_offsets[place]
        mask = torch.zeros(own.size, table.dim)
        mask[
            torch.from_numpy(np.searchsorted(own, local // table.dim)), torch.from_numpy(local % table.dim)
        ] = 1.0
        masks[place] = (own, mask)
    return masks


def _squared_norms(batch: LogicalBatch, survivors: NDArray[np.int64], layout: Layout) -> NDArray[np.float64]:
    if layout.masks:
        return batch.masked_squared_norms(survivors, layout.masks)
    return batch.squared_norms(survivors)


def _noise(layout: Layout, std: float, source: NoiseSource) -> Tensor:
    """Gaussian noise on every selected coordinate, also on rows that no example touched."""
    if std == 0:
        return torch.zeros(layout.size)
    flat = normals(layout.size, std, source.noise)
    for place, (_, mask) in layout.masks.items():
        view = layout.table_view(flat, place)
        view *= mask.numpy()
    return flat


def _accumulate(
    batch: LogicalBatch, survivors: NDArray[np.int64], weights: Tensor, layout: Layout, flat: Tensor
) -> None:
    """Add the weighted sums of the examples' gradients to the buffer."""
    for name, out in layout.dense_views(flat).items():
        batch.accumulate_dense(name, out, weights)
    if not layout.noised:
        return
    targets = {place: (rows, layout.table_view(flat, place)) for place, rows in layout.noised}
    batch.accumulate_rows(survivors, weights, targets)
    for place, (_, mask) in layout.masks.items():
        targets[place][1][...] *= mask.numpy()


def _touched_rows(
    batch: LogicalBatch, survivors: NDArray[np.int64], weights: Tensor
) -> dict[str, RowGradient]:
    nothing = torch.empty(0, dtype=torch.int64)
    touched = {table.name: RowGradient(nothing, torch.empty(0, table.dim)) for table in batch.space.tables}
    for place, rows, sums in batch.row_sums(survivors, weights):
        touched[batch.space.tables[place].name] = RowGradient(torch.from_numpy(rows), torch.from_numpy(sums))
    return touched
