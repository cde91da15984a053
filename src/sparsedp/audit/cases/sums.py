"""Audits of noisy sums over steps, and the known-bad forms that they must refute."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE
from sparsedp.audit.case import Case, Claim
from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.mechanisms import NoisySums
from sparsedp.randomness import Stream

_DELTA = 0.01
_ROWS = 400_000
"""So many rows are so many runs: every row has noise of its own."""


class _NoPast(NoisySums):
    """Sums that begin when a row is first read, without the noise of the steps before. Not private; a control."""

    @override
    def _never_passed(self, count: int, stream: Stream) -> I64:
        return np.zeros(count, np.int64)


def _passes(
    kind: type[NoisySums], std: float, read_at: int, is_read: bool, stream: Stream, runs: int
) -> NDArray[np.float64]:
    """Which rows pass their first review after the one step that reads them, or does not; a review follows every step."""
    sums, found = kind(runs, 0.0), np.zeros(runs)
    nobody, everybody = SparseCounts.zeros(runs), SparseCounts(np.arange(runs), np.ones(runs), runs)
    for step in range(1, read_at + 1):
        sums.add(everybody if is_read and step == read_at else nobody, std, stream)
        found[sums.review(stream).ids] += 1.0 if step == read_at else 2.0
    return np.where(found == 1.0, 1.0, 0.0)


def cases() -> list[Case]:
    """A row that one example reads in one step."""
    listed = [
        ("noisy sums, a row's first read", NoisySums, 0.5, 1),
        ("noisy sums, a later read", NoisySums, 0.5, 3),
        ("noisy sums that begin with the first read", _NoPast, 2.0, 13),
    ]
    return [
        Case(
            name,
            "mechanism",
            partial(_claim, std),
            partial(_passes, kind, std, step),
            (True, False),
            _ROWS,
            "whether the row of a rare id passes the next review as its first",
            is_control=kind is _NoPast,
        )
        for name, kind, std, step in listed
    ]


def _claim(std: float) -> Claim:
    epsilon = analytic_gaussian_epsilon(_DELTA, 1.0 / std)
    return Claim(epsilon, _DELTA, "the rows that pass each review", ADD_OR_REMOVE_ONE)
