"""EANA: noise only on the rows that were touched. Not private; the audits' positive control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsedp.accounting.events import DpEvent, NonPrivateDpEvent
from sparsedp.core.tables import TableShape
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace
from sparsedp.selection import Batch, Rule, Selected, Selection


@dataclass(frozen=True)
class EANA(Selection):
    """Selects exactly the rows that the batch touches.

    No guarantee: which rows got a gradient shows which rows were in the batch, so delta is at least 0.21
    for any epsilon (specification, section 1). It exists to show that an audit can fail.
    """

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """Nothing bounds it."""
        return NonPrivateDpEvent()

    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        """Every table is chosen in."""
        return RowSpace(selectable=tuple(tables))

    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> Rule:
        """Whatever was touched."""
        return _Touched(space, noise_multiplier, max_grad_norm, expected_batch_size)


@dataclass(frozen=True)
class _Touched(Rule):
    def select(self, batch: Batch, stream: Stream) -> Selected:
        return Selected(batch.contributions(norm=1.0).ids)
