"""The rows of streaming FEST: the most frequent by the sum of noisy counts over periods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import SparseCounts, contains
from sparsedp.core.defaults import DEFAULT_ALWAYS_ON_ROWS, DEFAULT_MU
from sparsedp.core.observing import draw
from sparsedp.core.tables import TableShape
from sparsedp.mechanisms import gaussian_event, threshold_for_false_positives
from sparsedp.randomness import (
    Stream,
    bernoulli_positions,
    noise_lattice,
    passing_cell,
    passing_probability,
    round_gaussian,
    rounded_gaussian_tail,
)
from sparsedp.rows import RowSpace, partition_tables
from sparsedp.selection.base import default_contribution_norm
from sparsedp.selection.fest import FEST


@dataclass
class StreamingVocabulary:
    """The ``k`` rows with the largest sums of noisy period counts.

    Guarantee: add-or-remove-one example; an example is in one period only and moves that period's joint
    histogram by at most C, the square root of the number of selectable tables; the histogram gets noise
    ``C / mu`` once: event ``Gaussian(1/mu)`` on that period's examples. Noisy counts below a public
    threshold are dropped; sums over periods and the top k are post-processing, at no further cost.
    Rows without a count are never visited: those whose noise alone exceeds the threshold are drawn by geometric
    gaps, with the distribution of the noise above the threshold.
    Where users are counted, each moves a period's histogram by at most C too, in every period that has rows of it.
    """

    tables: Sequence[TableShape]
    k: int
    mu: float = DEFAULT_MU
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS

    def __post_init__(self) -> None:
        self.sums = SparseCounts.zeros(self.space.selectable_size)
        """The noisy sums so far: outputs of the mechanism, from which a resumed run continues."""

    @property
    def space(self) -> RowSpace:
        """Large tables are selectable."""
        return partition_tables(self.tables, self.always_on_rows)

    @property
    def event(self) -> DpEvent:
        """What observing a period costs the examples of that period."""
        return gaussian_event(std=1.0 / self.mu, sensitivity=1.0)  # in units of C

    def observe(self, counts: Mapping[str, SparseCounts], stream: Stream) -> None:
        """Add a period's counts, with noise."""
        space = self.space
        std = default_contribution_norm(space) / self.mu
        total = SparseCounts(
            np.concatenate([space.number(t.name, counts[t.name].ids) for t in space.selectable]),
            np.concatenate([counts[t.name].values for t in space.selectable]),
            space.selectable_size,
        )
        self.sums += noisy_counts_above(total, std, self._threshold(std), stream)

    def restore(self, ids: I64, sums: F64) -> None:
        """Continue from these noisy sums."""
        self.sums = SparseCounts(ids, sums, self.space.selectable_size)

    def _threshold(self, std: float) -> float:
        """The threshold that about k rows exceed by noise alone."""
        return threshold_for_false_positives(self.k, self.space.selectable_size, std)

    def fest(self, event: DpEvent | None) -> FEST:
        """FEST on the current rows; ``event`` is what the rows cost the next period's examples, if anything."""
        space = self.space
        ids, k = self.sums.ids, min(self.k, self.sums.ids.size)
        top = np.sort(ids[np.argpartition(-self.sums.values, k - 1)[:k]]) if k else ids
        rows = dict(zip((table.name for table in space.selectable), space.split(top), strict=True))
        return FEST(rows, self.always_on_rows, event=event)


@draw
def noisy_counts_above(counts: SparseCounts, std: float, threshold: float, stream: Stream) -> SparseCounts:
    """Counts with Gaussian noise of ``std`` on every row; only those of at least ``threshold``.

    Exactly the distribution of adding noise to every row and dropping those below the threshold: rows with a
    count draw their noise; the others exceed the threshold with the same probability each, and then get noise
    conditioned on it, which is not negative. All values are integers of the lattice of ``std``, each with its
    probability to a relative 2^-40: a rounding of the Gaussian mechanism on the histogram, small values dropped.
    """
    if not threshold >= 0.0:
        raise ValueError(f"threshold: must not be negative, got {threshold}")
    lattice = noise_lattice(std)
    lowest = passing_cell(threshold, lattice)
    noisy = round_gaussian(counts.values, std=std, lattice=lattice, stream=stream)
    passed = noisy >= lowest
    hits = bernoulli_positions(stream, counts.size, passing_probability(lowest, std / lattice))
    hits = hits[~contains(counts.ids, hits)]
    above = rounded_gaussian_tail(lowest, std / lattice, hits.size, stream)
    ids = np.concatenate([counts.ids[passed], hits])
    order = np.argsort(ids)
    return SparseCounts(ids[order], lattice * np.concatenate([noisy[passed], above])[order], counts.size)
