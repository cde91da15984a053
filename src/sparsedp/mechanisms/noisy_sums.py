"""Sums of noisy counts over many steps: which rows reach a threshold, drawn without visiting the others (not in a paper)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike
from scipy.special import ndtr

from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import SparseCounts, contains, positions_in
from sparsedp.core.validation import check_count, check_finite, check_positive
from sparsedp.mechanisms.histogram import LARGEST_SIZE, check_histogram
from sparsedp.randomness import (
    Stream,
    bernoulli_positions,
    noise_lattice,
    passing_cell,
    round_gaussian,
    rounded_gaussian_tail,
)

_TAIL = 10.0
"""Standard deviations beyond which a walk is not followed: 1e-23 of all."""
_PANEL = 1.5
"""The width of a panel of the quadrature, in standard deviations of a walk's increment."""
_NODES, _WEIGHTS = leggauss(16)
_FEW = 1 << 16
_LARGEST_COUNT, _LARGEST_SUM = 1 << 44, 1 << 60
"""In cells: sums of any number of steps fit into 64 bits."""


class Review(NamedTuple):
    """What is public of a look at the sums."""

    variance: float
    """Of the noise on a sum, in squared cells."""
    lowest: int
    """The smallest sum that passes, in cells."""


class _Reads(NamedTuple):
    """Rows, their noisy counts in cells, and of how many steps these have the noise."""

    rows: I64
    cells: I64
    steps: I64


class NoisySums:
    """Sums of the noisy counts of ``size`` rows over steps; ``review`` says which are ``deviations`` above zero.

    Every row gets noise ``N(0, std^2)`` at every step, read or not. A sum passes a review if it is at least ``deviations``
    times the standard deviation of its noise.

    Guarantee: if one example moves a step's counts by at most ``C1`` in l2, the step costs its examples
    ``Gaussian(std / C1)``, however many reviews follow. Released: the rows that pass each review, and their sums there.
    All other sums are private, since they tell which rows were read. **They must go on once only, and are never saved**: two
    continuations would share the noise of rows that were read and draw that of the others anew.
    Proof: the rows that pass are a function of the noisy counts of all steps so far, each released once by the Gaussian
    mechanism. What is left is that they have the law of that function:

    - The sum of a row that nobody has read is a walk of Gaussian increments from review to review, independent of all
      others. Whether it passes a review for the first time is a coin with the chance that such a walk has
      (``first_pass_chances``). So the rows that do are placed by geometric gaps, and hits on known rows are discarded:
      those have sums of their own. The sum of a row that passes is drawn from the tail, and its earlier ones from the
      bridge to it; it is accepted if none of them passed.
    - A row that is read for the first time has the sum of a walk that has not passed so far: drawn, and accepted if so.
    - From then on the row is known. Steps that read it add their noisy count; the noise of the others is added by the
      next review, at once: a sum of independent Gaussians is Gaussian.

    Sums are integers of the lattice of the first ``std``, with probabilities to a relative 2^-40; a noisy count beyond
    2^20 standard deviations counts as that. A step takes the time and memory of the rows it reads, a review those of the
    rows that were read or passed so far. A call that is interrupted leaves the sums as they were.
    """

    def __init__(self, size: int, deviations: float) -> None:
        self.size = check_count("size", size, minimum=0, maximum=LARGEST_SIZE)
        self.deviations = check_finite("deviations", deviations)
        if deviations < 0.0:
            raise ValueError(f"deviations: must not be negative, got {deviations}")
        self._process = os.getpid()
        self.reviews: list[Review] = []
        self._rows: I64 = np.empty(0, np.int64)
        """The known rows, sorted."""
        self._sums: I64 = np.empty(0, np.int64)
        """Theirs, in cells, with the noise of all steps up to the last time that it was added."""
        self._variance = 0.0
        """Of that noise, in squared cells."""
        self._lattice, self._std = 0.0, 0.0
        self._steps = 0
        """Since then; all with noise of ``_std``."""
        self._reads: list[_Reads] = []
        """What was read in them."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("noisy sums go on once only: they can be neither copied nor pickled")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("noisy sums go on once only: this is a fork of the process that has them")

    @property
    def known(self) -> int:
        """How many rows have a sum of their own. NOT PRIVATE."""
        return self._rows.size

    def add(self, counts: SparseCounts, std: float, stream: Stream) -> None:
        """The counts of a step, with noise of ``std`` on every row."""
        self._check_process()
        std = check_positive("std", std)
        rows, values, _ = check_histogram(counts.ids, counts.values, max(self.size, 1))
        lattice = self._lattice or noise_lattice(std)
        cells = round_gaussian(values, std=std, lattice=lattice, stream=stream)
        if std != self._std:
            self._add_reads(stream)
        # The caller may change its ids later.
        reads = [
            *self._reads,
            _Reads(rows.copy(), _bounded(cells, _LARGEST_COUNT), np.ones(cells.size, np.int64)),
        ]
        # Merged when there is as much again: all merges together take the time of a few.
        if sum(part.rows.size for part in reads[1:]) > max(reads[0].rows.size, _FEW):
            reads = [_merged(reads)]
        self._lattice, self._std, self._steps, self._reads = lattice, std, self._steps + 1, reads

    def review(self, stream: Stream) -> SparseCounts:
        """The rows whose sums pass, and how many standard deviations of the noise these are."""
        self._check_process()
        self._add_reads(stream)
        if self._variance == (self.reviews[-1].variance if self.reviews else 0.0):
            raise ValueError("review: needs a step since the last one")
        std = math.sqrt(self._variance)
        reviews = [*self.reviews, Review(self._variance, passing_cell(self.deviations * std, 1.0))]
        hits = bernoulli_positions(stream, self.size, float(first_pass_chances(reviews)[-1]))
        hits = hits[~contains(self._rows, hits)]
        rows, sums = _inserted(self._rows, self._sums, hits, _first_passes(reviews, hits.size, stream))
        self._rows, self._sums, self.reviews = rows, sums, reviews
        passed = sums >= reviews[-1].lowest
        return SparseCounts(rows[passed], sums[passed] / std, self.size)

    def _add_reads(self, stream: Stream) -> None:
        """Add what was read since the last time to the sums, and the noise of these steps on every known row."""
        if not self._steps:
            return
        read = _merged(self._reads)
        new = read.rows[~contains(self._rows, read.rows)]
        rows, sums = _inserted(self._rows, self._sums, new, self._never_passed(new.size, stream))
        place = positions_in(rows, read.rows)
        missing = np.full(rows.size, self._steps)
        sums[place] += read.cells
        missing[place] -= read.steps
        sums += self._noise(missing, stream)
        variance = self._variance + self._steps * (self._std / self._lattice) ** 2
        self._rows, self._sums, self._variance = rows, _bounded(sums, _LARGEST_SUM), variance
        self._steps, self._reads = 0, []

    def _noise(self, steps: I64, stream: Stream) -> I64:
        """The noise of so many steps, in cells, one number for each row."""
        noise, order = np.zeros(steps.size, np.int64), np.argsort(steps, kind="stable")
        counts, starts = np.unique(steps[order], return_index=True)
        for count, rows in zip(counts.tolist(), np.split(order, starts)[1:], strict=True):
            if count:
                variance = count * (self._std / self._lattice) ** 2
                noise[rows] = _cells(np.zeros(rows.size), variance, stream)
        return noise

    def _never_passed(self, count: int, stream: Stream) -> I64:
        """Sums of rows that nobody has read and that passed no review."""
        found: list[I64] = []
        while (missing := count - sum(part.size for part in found)) > 0:
            sums, variance = np.zeros(2 * missing, np.int64), 0.0
            for review in self.reviews:
                sums += _cells(np.zeros(sums.size), review.variance - variance, stream)
                sums, variance = sums[sums < review.lowest], review.variance
            sums += _cells(np.zeros(sums.size), self._variance - variance, stream)
            found.append(sums[:missing])
        return np.concatenate([np.empty(0, np.int64), *found])


def first_pass_chances(reviews: Sequence[Review]) -> F64:
    """For each review the chance that a walk of noise alone passes it, given that it has passed none before.

    Proof: the density of a walk that has not passed is carried from review to review, by Gauss-Legendre quadrature on
    panels of at most ``_PANEL`` standard deviations of the increment; right to a relative 1e-12 (against finer panels).
    """
    chances = []
    places, mass, before = np.zeros(1), np.ones(1), 0.0
    for review in reviews:
        std, increment = math.sqrt(review.variance), math.sqrt(review.variance - before)
        border = review.lowest - 0.5
        chances.append(float(mass @ ndtr((places - border) / increment) / mass.sum()))
        low, high = -_TAIL * std, min(border, _TAIL * std)
        panels = math.ceil((high - low) / (_PANEL * increment))
        half = (high - low) / panels / 2
        nodes = (low + half * (2 * np.arange(panels) + 1))[:, None] + half * _NODES
        weights = np.tile(half * _WEIGHTS, panels)
        steps = (nodes.reshape(-1, 1) - places) / increment
        density = np.exp(-0.5 * steps**2) @ mass / (math.sqrt(2 * math.pi) * increment)
        places, mass, before = nodes.reshape(-1), weights * density, review.variance
    return np.array(chances)


def _first_passes(reviews: Sequence[Review], count: int, stream: Stream) -> I64:
    """Sums of rows that nobody has read and that pass the last review, and none before."""
    *earlier, last = reviews
    found: list[I64] = []
    while (missing := count - sum(part.size for part in found)) > 0:
        sums = rounded_gaussian_tail(last.lowest, math.sqrt(last.variance), 2 * missing, stream)
        walk, variance = sums, last.variance
        for review in reversed(earlier):
            # Of a walk that ends at x with variance v: mean x u / v and variance u (v - u) / v at u.
            share = review.variance / variance
            walk = _cells(walk * share, (variance - review.variance) * share, stream)
            alive = walk < review.lowest
            sums, walk, variance = sums[alive], walk[alive], review.variance
        found.append(sums[:missing])
    return np.concatenate([np.empty(0, np.int64), *found])


def _cells(values: ArrayLike, variance: float, stream: Stream) -> I64:
    """Values with noise, both in cells."""
    if variance == 0.0:
        return np.zeros(np.size(values), np.int64)
    return round_gaussian(values, std=math.sqrt(variance), lattice=1.0, stream=stream)


def _inserted(rows: I64, sums: I64, new: I64, their_sums: I64) -> tuple[I64, I64]:
    """Rows in order with new ones among them, and their sums."""
    where = rows.searchsorted(new)
    return np.insert(rows, where, new), np.insert(sums, where, their_sums)


def _bounded(cells: I64, largest: int) -> I64:
    return np.clip(cells, -largest, largest)


def _merged(reads: Sequence[_Reads]) -> _Reads:
    """Each row once, its cells and steps added."""
    if len(reads) == 1:
        return reads[0]
    rows, place = np.unique(
        np.concatenate([np.empty(0, np.int64), *(part.rows for part in reads)]), return_inverse=True
    )
    cells, steps = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
    np.add.at(cells, place, np.concatenate([np.empty(0, np.int64), *(part.cells for part in reads)]))
    np.add.at(steps, place, np.concatenate([np.empty(0, np.int64), *(part.steps for part in reads)]))
    return _Reads(rows, _bounded(cells, _LARGEST_SUM), steps)
