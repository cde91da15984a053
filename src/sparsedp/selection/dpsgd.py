"""DP-SGD: every row of every table gets noise at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparsedp.core.tables import TableShape
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace
from sparsedp.selection.base import Batch, LooksAt, Rule, Selected, Selection


@dataclass(frozen=True)
class DPSGD(Selection):
    """Dense DP-SGD.

    Guarantee: add-or-remove-one example; the clipped sum moves by at most ``max_grad_norm`` in l2; event per step
    ``PoissonSampled(q, Gaussian(sigma))``; the whole gradient of every step is released.
    Reference: Abadi et al. 2016; section 2 "DP-SGD" of the specification in ``docs/privacy.md``.

    With ``lazy=True`` a row that no example touches receives the step's noise only before it is next read or
    released. For plain SGD the final model has the same distribution (to rounding, see ``LazyTable``) and
    the same event, but only the *final model* may be released: which rows of an intermediate table have their
    noise already shows which were read.
    """

    lazy: bool = False

    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        """Every table is always on."""
        return RowSpace(selectable=(), always_on=tuple(tables))

    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> Rule:
        """Nothing to choose."""
        return _AllRows(space, noise_multiplier, max_grad_norm, expected_batch_size)


@dataclass(frozen=True)
class _AllRows(Rule):
    looks_at: ClassVar[LooksAt] = "nothing"

    def select(self, batch: Batch, stream: Stream) -> Selected:
        return Selected(np.empty(0, dtype=np.int64))
