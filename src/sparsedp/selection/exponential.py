"""Selection of rows by the exponential mechanism (WIDE, Algorithms 3 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsedp.accounting.events import DpEvent
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
    by at most ``Delta = min(S0, C / B)``.

    Guarantee: add-or-remove-one example; each draw is ``selection_epsilon``-bounded-range, the masked and
    clipped sum moves by at most ``max_grad_norm`` (by ``min(max_grad_norm, 2 batch_clip B)`` where the mean gradient is
    clipped a second time). Event per step: ``rows`` bounded-range draws and one Gaussian on the *same*
    Poisson batch, subsampled jointly. Released: the rows and the gradient on them.
    Reference: bounded range, Dong et al. 2020; the joint subsampling is in ``accounting.pld.bounded_range``.
    """

    rows: int
    selection_epsilon: float
    score_cap: float
    batch_clip: float | None = None
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS

    def __post_init__(self) -> None:
        check_always_on(self.always_on_rows)
        check_scored_rows(self.rows, self.selection_epsilon, self.score_cap, self.batch_clip)

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """The draws and the gradient, composed."""
        return exponential_event(
            draws=self.rows, epsilon=self.selection_epsilon, noise_multiplier=noise_multiplier
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
            rows=min(self.rows, space.selectable_size),
            epsilon=self.selection_epsilon,
            score_cap=self.score_cap,
        )


@dataclass(frozen=True)
class _TopByGumbel(Rule):
    rows: int = 0
    epsilon: float = 0.0
    score_cap: float = 0.0

    def select(self, batch: Batch, stream: Stream) -> Selected:
        if not self.rows:
            return Selected(np.empty(0, dtype=np.int64))
        scores = batch.scores()
        chosen = exponential_top_k(
            scores.ids,
            np.minimum(scores.values, self.score_cap),
            self.space.selectable_size,
            k=self.rows,
            epsilon=self.epsilon,
            sensitivity=min(self.score_cap, self.max_grad_norm / self.expected_batch_size),
            stream=stream,
        )
        return Selected(chosen)


def check_scored_rows(rows: int, epsilon: float, score_cap: float, batch_clip: float | None) -> None:
    """Refuse invalid parameters by name."""
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    for name, value in (("selection_epsilon", epsilon), ("score_cap", score_cap), ("batch_clip", batch_clip)):
        if value is not None and not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")
