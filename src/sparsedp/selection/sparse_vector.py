"""Selection of rows by the sparse vector technique (WIDE, Algorithms 1 and 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsedp.accounting.events import ComposedDpEvent, DpEvent
from sparsedp.core.defaults import DEFAULT_ALWAYS_ON_ROWS
from sparsedp.core.tables import TableShape
from sparsedp.mechanisms import sparse_vector, sparse_vector_event
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace, partition_tables
from sparsedp.selection.base import Batch, Rule, Selected, Selection, check_always_on
from sparsedp.selection.exponential import check_scored, chosen_count, selectable_size, selected


@dataclass(frozen=True)
class SparseVectorSelection(Selection):
    """The first ``rows`` rows, in the order of their ids, whose noisy score exceeds a noisy ``threshold``.

    With ``rows=None`` and ``coordinates`` given, single coordinates are searched, as in the WIDE paper. Scores are
    those of ``ExponentialSelection``. Provided because that paper compares with it: a Gaussian contribution map with
    a threshold (``AdaFEST``) finds the same rows with about 30 times less noise, and does not prefer rows with small
    ids.

    Guarantee: add-or-remove-one example; each of the at most ``rows`` (or ``coordinates``) rounds is
    ``selection_epsilon``-DP (half on the threshold's Laplace noise, half on the row's), the masked and clipped sum moves
    by at most ``max_grad_norm``. Event per step: sparse vector and one Gaussian on the *same* Poisson batch. Released:
    the choice and the gradient on it. The search stops after ``rows`` hits, not one later as printed in the paper.
    """

    rows: int | None
    selection_epsilon: float
    score_cap: float
    threshold: float
    batch_clip: float | None = None
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS
    coordinates: int | None = None

    def __post_init__(self) -> None:
        check_always_on(self.always_on_rows)
        check_scored(self.rows, self.coordinates, self.selection_epsilon, self.score_cap, self.batch_clip)
        if not np.isfinite(self.threshold):
            raise ValueError(f"threshold must be finite, got {self.threshold}")

    @property
    def _scales(self) -> tuple[float, float]:
        """Laplace scales of threshold and rows, in units of a score's sensitivity."""
        return 2.0 / self.selection_epsilon, 4.0 / self.selection_epsilon

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """The search and the gradient on the same batch, composed."""
        threshold_scale, query_scale = self._scales
        search = sparse_vector_event(
            positives=chosen_count(self.rows, self.coordinates),
            sensitivity=1.0,
            threshold_scale=threshold_scale,
            query_scale=query_scale,
        )
        return ComposedDpEvent([search, super().step_event(noise_multiplier)])

    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        """Small tables are always on."""
        return partition_tables(tables, self.always_on_rows)

    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> Rule:
        """Search with noise scaled by the sensitivity of a score."""
        sensitivity = min(self.score_cap, max_grad_norm / expected_batch_size)
        threshold_scale, query_scale = self._scales
        return _FirstAbove(
            space,
            noise_multiplier,
            max_grad_norm,
            expected_batch_size,
            self.batch_clip,
            count=chosen_count(self.rows, self.coordinates),
            single=self.coordinates is not None,
            score_cap=self.score_cap,
            threshold=self.threshold,
            threshold_scale=threshold_scale * sensitivity,
            query_scale=query_scale * sensitivity,
        )


@dataclass(frozen=True)
class _FirstAbove(Rule):
    count: int = 0
    single: bool = False
    """Single coordinates are searched, not rows."""
    score_cap: float = 0.0
    threshold: float = 0.0
    threshold_scale: float = 0.0
    query_scale: float = 0.0

    def select(self, batch: Batch, stream: Stream) -> Selected:
        size = selectable_size(self.space, single=self.single)
        if not size:
            return Selected(np.empty(0, dtype=np.int64))
        scores = batch.coordinate_scores() if self.single else batch.scores()
        found = sparse_vector(
            scores.ids,
            np.minimum(scores.values, self.score_cap),
            size,
            threshold=self.threshold,
            positives=self.count,
            threshold_scale=self.threshold_scale,
            query_scale=self.query_scale,
            stream=stream,
        )
        return selected(self.space, found, single=self.single)
