"""Batches for selection rules: given counts, or real gradients of a small model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sparsedp.clipping import Capture
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.rows import RowSpace
from sparsedp.selection import Rule
from sparsedp.training.batch import LogicalBatch, ScoredBatch

NOBODY = SparseCounts.zeros(0)


@dataclass
class GivenBatch:
    """Answers with what it was given, and remembers what it was asked."""

    space: RowSpace
    counts: SparseCounts = NOBODY
    given_scores: SparseCounts = NOBODY
    asked: list[tuple[float, NDArray[np.int64] | None]] = field(default_factory=list)

    def contributions(self, norm: float, domain: NDArray[np.int64] | None = None) -> SparseCounts:
        self.asked.append((norm, domain))
        ids, values = self.counts.ids, self.counts.values
        inside = np.ones(ids.size, np.bool_) if domain is None else np.isin(ids, domain)
        return SparseCounts(ids[inside], values[inside], self.space.selectable_size)

    def scores(self) -> SparseCounts:
        return self.given_scores

    def coordinate_scores(self) -> SparseCounts:
        return self.given_scores


def one_table(rows: int, name: str = "table", dim: int = 2) -> RowSpace:
    return RowSpace(selectable=(TableShape(name, rows, dim),))


def counts_of(**counts: float) -> SparseCounts:
    """``counts_of(r3=1.0)``: row 3 has the count 1."""
    ids = sorted(int(name[1:]) for name in counts)
    values = np.array([counts[f"r{row}"] for row in ids], np.float64)
    return SparseCounts(np.array(ids, np.int64), values, max(ids) + 1)


class Directions(nn.Module):
    """The gradient of example i in row ``ids[i]`` is ``directions[i]``, and nothing else has one."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, dim, sparse=True)

    def forward(self, ids: Tensor, directions: Tensor) -> Tensor:
        return (self.table(ids) * directions).sum(dim=tuple(range(1, directions.dim())))


def scores_of(rule: Rule, ids: Tensor, directions: Tensor, *, coordinates: bool = False) -> dict[int, float]:
    """The scores of rows (or of single coordinates) that a rule sees on real captured gradients."""
    table = rule.space.selectable[0]
    model = Directions(table.rows, table.dim)
    capture = Capture(model, loss_reduction="sum")
    model(ids, directions).sum().backward()
    batch = ScoredBatch(LogicalBatch(capture.take(), rule.space), rule)
    scores = batch.coordinate_scores() if coordinates else batch.scores()
    capture.detach()
    return dict(zip(scores.ids.tolist(), scores.values.tolist(), strict=True))
