"""Selection of rows or coordinates at random: no privacy cost, the baseline for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsedp.core.arrays import I64
from sparsedp.core.defaults import DEFAULT_ALWAYS_ON_ROWS
from sparsedp.core.tables import TableShape
from sparsedp.mechanisms.histogram import distinct_integers
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace, partition_tables
from sparsedp.selection.base import Batch, LooksAt, Rule, Selected, Selection, check_always_on


@dataclass(frozen=True)
class RandomSelection(Selection):
    """``rows`` rows per step, or ``coordinates`` single coordinates, uniformly at random.

    Row-wise is the FEST paper's baseline; coordinate-wise, with the second clipping ``batch_clip`` of the mean
    gradient, is WIDE's Algorithm 3 with random sampling.

    Guarantee: add-or-remove-one example; the choice does not depend on data and costs nothing; the masked and
    clipped sum moves by at most ``max_grad_norm`` (``min(max_grad_norm, 2 batch_clip B)`` with the second clipping). Event per
    step ``PoissonSampled(q, Gaussian(sigma))``. Released: the choice and the gradient on it.
    """

    rows: int | None = None
    coordinates: int | None = None
    batch_clip: float | None = None
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS

    def __post_init__(self) -> None:
        check_always_on(self.always_on_rows)
        if (self.rows is None) == (self.coordinates is None):
            raise ValueError("rows or coordinates: give one of them")
        if (self.rows or self.coordinates or 0) < 1:
            raise ValueError(f"rows or coordinates must be at least 1, got {self.rows or self.coordinates}")
        if self.batch_clip is not None and not (np.isfinite(self.batch_clip) and self.batch_clip > 0):
            raise ValueError(f"batch_clip must be positive and finite, got {self.batch_clip}")

    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        """Small tables are always on."""
        return partition_tables(tables, self.always_on_rows)

    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> Rule:
        """Draw at random at every step."""
        if self.rows is not None:
            return _RandomRows(
                space, noise_multiplier, max_grad_norm, expected_batch_size, self.batch_clip, count=self.rows
            )
        assert self.coordinates is not None
        return _RandomCoordinates(
            space,
            noise_multiplier,
            max_grad_norm,
            expected_batch_size,
            self.batch_clip,
            count=self.coordinates,
        )


@dataclass(frozen=True)
class _RandomRows(Rule):
    looks_at: ClassVar[LooksAt] = "nothing"
    count: int = 0

    def select(self, batch: Batch, stream: Stream) -> Selected:
        return Selected(sample_distinct(stream, self.space.selectable_size, self.count))


@dataclass(frozen=True)
class _RandomCoordinates(Rule):
    looks_at: ClassVar[LooksAt] = "nothing"
    count: int = 0

    def select(self, batch: Batch, stream: Stream) -> Selected:
        coordinates = sample_distinct(stream, int(self.space.coordinate_offsets[-1]), self.count)
        return Selected(np.unique(self.space.row_of_coordinate(coordinates)), coordinates)


def sample_distinct(stream: Stream, size: int, count: int) -> I64:
    """``count`` distinct integers below ``size`` (all of them, if there are fewer), uniformly, sorted."""
    return distinct_integers(size, k=min(count, size), stream=stream)
