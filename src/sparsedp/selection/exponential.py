"""Selection of rows by the exponential mechanism (WIDE, Algorithms 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import I64
from sparsedp.core.defaults import DEFAULT_ALWAYS_ON_ROWS
from sparsedp.core.tables import TableShape
from sparsedp.mechanisms import exponential_event, exponential_top_k
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace, partition_tables
from sparsedp.selection.base import Batch, Rule, Selected, Selection, check_always_on


@dataclass(frozen=True)
class ExponentialSelection(Selection):
    """``rows`` rows per step, drawn without replacement with weights ``exp(eps score / (2 Delta))``.

    A row's score is its norm in the mean clipped gradient, capped at ``score_cap`` S0; one example moves it
    by at most ``Delta = min(S0, C / B)``. With ``rows=None`` and ``coordinates`` given, so many single coordinates are
    drawn, as in the WIDE paper; a coordinate's score is its absolute value, and the same bounds hold.

    Guarantee: add-or-remove-one example; each draw is ``selection_epsilon``-bounded-range, the masked and
    clipped sum moves by at most ``max_grad_norm`` (by ``min(max_grad_norm, 2 batch_clip B)`` where the mean gradient is
    clipped a second time). Event per step: ``rows`` (or ``coordinates``) bounded-range draws and one Gaussian on the
    *same* Poisson batch, subsampled jointly. Released: the choice and the gradient on it.
    Reference: bounded range, Dong et al. 2020; the joint subsampling is in ``accounting.pld.bounded_range``.
    """

    rows: int | None
    selection_epsilon: float
    score_cap: float
    batch_clip: float | None = None
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS
    coordinates: int | None = None

    def __post_init__(self) -> None:
        check_always_on(self.always_on_rows)
        check_scored(self.rows, self.coordinates, self.selection_epsilon, self.score_cap, self.batch_clip)

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """The draws and the gradient, composed."""
        return exponential_event(
            draws=chosen_count(self.rows, self.coordinates),
            epsilon=self.selection_epsilon,
            noise_multiplier=noise_multiplier,
        )

    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        """Small tables are always on."""
        return partition_tables(tables, self.always_on_rows)

    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> Rule:
        """Draw by Gumbel keys."""
        return _TopByGumbel(
            space,
            noise_multiplier,
            max_grad_norm,
            expected_batch_size,
            self.batch_clip,
            count=chosen_count(self.rows, self.coordinates),
            single=self.coordinates is not None,
            epsilon=self.selection_epsilon,
            score_cap=self.score_cap,
        )


@dataclass(frozen=True)
class _TopByGumbel(Rule):
    count: int = 0
    single: bool = False
    """Single coordinates are drawn, not rows."""
    epsilon: float = 0.0
    score_cap: float = 0.0

    def select(self, batch: Batch, stream: Stream) -> Selected:
        size = selectable_size(self.space, single=self.single)
        if not size:
            return Selected(np.empty(0, dtype=np.int64))
        scores = batch.coordinate_scores() if self.single else batch.scores()
        chosen = exponential_top_k(
            scores.ids,
            np.minimum(scores.values, self.score_cap),
            size,
            k=min(self.count, size),
            epsilon=self.epsilon,
            sensitivity=min(self.score_cap, self.max_grad_norm / self.expected_batch_size),
            stream=stream,
        )
        return selected(self.space, chosen, single=self.single)


def chosen_count(rows: int | None, coordinates: int | None) -> int:
    """How many rows, or single coordinates, a step chooses; one of the two is given."""
    count = coordinates if rows is None else rows
    assert count is not None
    return count


def selectable_size(space: RowSpace, *, single: bool) -> int:
    """How many rows, or single coordinates, there are to choose from."""
    return int(space.coordinate_offsets[-1]) if single else space.selectable_size


def selected(space: RowSpace, chosen: I64, *, single: bool) -> Selected:
    """Chosen rows, or single coordinates with the rows that they lie in."""
    return Selected(np.unique(space.row_of_coordinate(chosen)), chosen) if single else Selected(chosen)


def check_scored(
    rows: int | None, coordinates: int | None, epsilon: float, score_cap: float, batch_clip: float | None
) -> None:
    """Refuse invalid parameters by name."""
    if (rows is None) == (coordinates is None):
        raise ValueError("rows or coordinates: give one of them, and None for the other")
    if chosen_count(rows, coordinates) < 1:
        name = "rows" if rows is not None else "coordinates"
        raise ValueError(f"{name} must be at least 1, got {chosen_count(rows, coordinates)}")
    for name, value in (("selection_epsilon", epsilon), ("score_cap", score_cap), ("batch_clip", batch_clip)):
        if value is not None and not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")
