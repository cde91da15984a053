"""Bias-reduced SGD with sparse gradients (SGO Algorithms 5 and 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from sparsedp.accounting import PrivacyStatement
from sparsedp.convex.sgd.batch_schedule import BatchSchedule
from sparsedp.convex.sgd.gradient_sums import clipped_rows, combine, row_sum
from sparsedp.convex.sgd.iterate import Iterate
from sparsedp.convex.sgd.protocol import SparseLoss, check_start
from sparsedp.convex.sgd.sparse_projection import project_noisy
from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.validation import check_count, check_number, check_positive
from sparsedp.randomness import NoiseSource, Stream, bernoulli_positions


@dataclass(frozen=True)
class Minimised:
    """The result of a run: the point, the number of steps, and the guarantee."""

    x: F64
    steps: int
    statement: PrivacyStatement


@dataclass(frozen=True)
class BiasReducedSGD:
    """SGD whose gradient is a telescope of projection mechanisms over batches of random size.

    The projection mechanism is accurate in high dimension but biased. Over a batch of level N its
    correction `mechanism(B) - (mechanism(O) + mechanism(E))/2` is divided by the probability of that level;
    on average the corrections add up to the bias of the largest batch alone, at the price of heavy tails.

    Fields are public: `l2_bound` L to which every example's gradient is clipped, `sparsity` s (the
    projection's radius is `L sqrt(s)`), `step_size`, `convex` (average iterate) or not (a uniformly random
    one), `radius` of the Euclidean ball around the origin to which iterates are projected (infinite: none).

    Guarantee: that of the schedule, (epsilon, delta)-DP for unit example under the schedule's adjacency;
    every iterate may be released. Sensitivity: one example moves a mean over an expected m examples by at
    most `L / m`, for any others; see `step_events`. The iterates, their average and a random
    choice among them are post-processing.
    """

    l2_bound: float
    sparsity: int
    step_size: float
    convex: bool = True
    radius: float = math.inf

    def __post_init__(self) -> None:
        check_positive("l2_bound", self.l2_bound)
        check_count("sparsity", self.sparsity)
        check_positive("step_size", self.step_size)
        if check_number("radius", self.radius) <= 0.0:
            raise ValueError(f"radius must be positive, got {self.radius}")

    def minimise(
        self, loss: SparseLoss, start: ArrayLike, *, schedule: BatchSchedule, source: NoiseSource
    ) -> Minimised:
        """Run the schedule from `start` (Algorithm 6)."""
        x = check_start(start, loss)
        if self.sparsity > loss.dimension:
            raise ValueError(f"sparsity must be at most the dimension {loss.dimension}, got {self.sparsity}")
        if not schedule.steps:
            raise ValueError("schedule must hold at least one step")
        iterate = Iterate(x, self.radius)
        # A random iterate needs none of the steps after it: choose first, then stop there.
        last = schedule.steps if self.convex else int(source.sampling.integers(schedule.steps + 1, 1)[0])
        for level in schedule.levels[:last]:
            gradient = self.gradient(loss, iterate.x, int(level), schedule=schedule, source=source)
            iterate.move(gradient, -self.step_size)
        point = iterate.average() if self.convex else iterate.x
        return Minimised(point, last, self._statement(schedule, source))

    def gradient(
        self, loss: SparseLoss, x: F64, level: int, *, schedule: BatchSchedule, source: NoiseSource
    ) -> SparseCounts:
        """The subsampled bias-reduced gradient estimate at x for N = `level` (Algorithm 5).

        Guarantee: `Poisson(q_k, Gaussian(kappa/sqrt(2)))` and `Poisson(1/n, Gaussian(kappa))`,
        add-or-remove-one.
        """
        half = 2.0**level
        batch = bernoulli_positions(source.sampling, loss.size, schedule.rate(level))
        odd = _fair_coins(batch.size, source.sampling)
        single = bernoulli_positions(source.sampling, loss.size, 1.0 / schedule.size)
        rows = self._clipped_gradients(loss, x, np.concatenate([batch, single]))
        in_batch = np.arange(batch.size + single.size) < batch.size
        in_odd = np.append(odd, np.zeros(single.size, dtype=bool))
        noise = schedule.noise, source.noise
        both = self._mechanism(row_sum(rows, in_batch), 2.0 * half, *noise)
        odds = self._mechanism(row_sum(rows, in_odd), half, *noise)
        evens = self._mechanism(row_sum(rows, in_batch & ~in_odd), half, *noise)
        first = self._mechanism(row_sum(rows, ~in_batch), 1.0, *noise)
        weight = 1.0 / schedule.probability(level)
        return combine((weight, both), (-weight / 2.0, odds), (-weight / 2.0, evens), (1.0, first))

    def _mechanism(self, total: SparseCounts, divisor: float, noise: float, stream: Stream) -> SparseCounts:
        """Projection_Mechanism of a sum of gradients over a public divisor (Algorithm 1)."""
        mean = SparseCounts(total.ids, total.values / divisor, total.size)
        radius = self.l2_bound * math.sqrt(self.sparsity)
        return project_noisy(mean, std=noise * self.l2_bound / divisor, radius=radius, stream=stream)

    def _clipped_gradients(self, loss: SparseLoss, x: F64, rows: I64) -> sparse.csr_array:
        gradients = loss.gradient_rows(x, rows)
        if gradients.shape != (rows.size, loss.dimension):
            raise ValueError(
                f"loss gave gradients of shape {gradients.shape}, expected {(rows.size, loss.dimension)}"
            )
        return clipped_rows(gradients, self.l2_bound)

    def _statement(self, schedule: BatchSchedule, source: NoiseSource) -> PrivacyStatement:
        return PrivacyStatement(
            epsilon=schedule.epsilon,
            delta=schedule.delta,
            adjacency=schedule.adjacency,
            unit="example",
            released="the average iterate" if self.convex else "a random iterate",
            private=source.is_private,
            notes=(f"sampling rates and divisors made for a public size of {schedule.size}",),
        )


def _fair_coins(count: int, stream: Stream) -> NDArray[np.bool_]:
    return (np.frombuffer(stream.bytes(count), dtype=np.uint8) & 1).astype(bool)
