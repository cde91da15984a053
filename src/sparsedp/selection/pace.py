"""How often each row of a fixed set is updated: frequent rows often, rare rows seldom."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from sparsedp.core.arrays import F64, I64

_PER_OCTAVE = 4
"""Different periods between one and its double: rows of one period are found together."""


def periods_by_count(counts: F64, rows_per_step: int, longest: int) -> I64:
    """Steps between two updates of each row: at most ``longest``, on average ``rows_per_step`` rows a step.

    A row of count c has the period ``sqrt(c0 / c)``, rounded down to one of four an octave, with one c0 for all: the
    model moves on while a row waits, and that costs more where more examples read the row. Where even the longest period for
    all of them is too short, more than ``rows_per_step`` rows are due, and a warning says so.
    """
    if not counts.size:
        return np.empty(0, dtype=np.int64)
    if counts.size > rows_per_step * longest:
        warnings.warn(
            f"{counts.size:,} rows take turns, {counts.size / longest:,.0f} in a step if each has one in {longest:,} "
            f"steps, which is more than {rows_per_step:,}: frequent rows wait as long as rare ones. Give more rows, or a "
            "longer update_every",
            stacklevel=2,
        )
    logs = 0.5 * np.log2(np.maximum(counts, np.finfo(np.float64).tiny))
    most = float(np.log2(longest))

    def periods(level: float) -> I64:
        octaves = np.floor(_PER_OCTAVE * np.clip(level - logs, 0.0, most)) / _PER_OCTAVE
        return np.where(level - logs >= most, longest, np.exp2(octaves)).astype(np.int64)

    low, high = float(logs.min()), float(logs.max()) + most
    for _ in range(50):
        level = 0.5 * (low + high)
        if float((1.0 / periods(level)).sum()) > rows_per_step:
            low = level
        else:
            high = level
    return periods(high)


class UpdateSchedule:
    """Which rows of a fixed set are due at a step. Public: a function of the rows, their periods and the step's number.

    The rows of one period take turns: at each step every period-th of them is due.
    """

    def __init__(self, rows: Sequence[I64], periods: Sequence[I64]) -> None:
        self.rows = list(rows)
        """Per selectable table the rows, sorted."""
        self._places = [
            {int(period): np.flatnonzero(own == period) for period in np.unique(own)} for own in periods
        ]

    def due(self, step: int) -> list[I64]:
        """Per table, where the rows that are due stand among ``rows``, sorted."""
        return [
            np.sort(
                np.concatenate([np.empty(0, np.int64), *(p[-step % t :: t] for t, p in by_period.items())])
            )
            for by_period in self._places
        ]
