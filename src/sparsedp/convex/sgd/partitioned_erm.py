"""Partitioned ERM with NumericSparse (WIDE Algorithm 2), accounted for as it must be.

Each iteration looks at one of m parts of the data, picked uniformly, and publishes the few coordinates of
its mean gradient that pass a noisy threshold. Kept for comparison: bias-reduced SGD needs no partition and
far less noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, sparse

from sparsedp.accounting import PrivacyStatement
from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.convex.sgd.bias_reduced_sgd import Minimised
from sparsedp.convex.sgd.gradient_sums import SAFE, row_sum, without_broken_rows
from sparsedp.convex.sgd.iterate import Iterate
from sparsedp.convex.sgd.protocol import SparseLoss, check_start
from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.validation import (
    check_count,
    check_delta,
    check_epsilon,
    check_number,
    check_positive,
)
from sparsedp.mechanisms import numeric_sparse
from sparsedp.randomness import NoiseSource, Stream

_THRESHOLD_SHARE = 0.95
"""The part of an iteration's epsilon that finds coordinates; the rest answers for them (WIDE Algorithm 1)."""


@dataclass(frozen=True)
class IterationPrice:
    """What one iteration may spend on the part that it looks at: the paper's eps' and delta'."""

    epsilon: float
    delta: float


def iteration_price(*, epsilon: float, delta: float, parts: int, iterations: int) -> IterationPrice:
    """The largest cost per iteration at which `iterations` reads of one of `parts` parts stay (epsilon, delta)-DP.

    Proof: strong composition (Kairouz, Oh and Viswanath 2015) of k iterations of (e, d) at slack delta/2
    gives `k e (e^e - 1) + e sqrt(2 k ln(2/delta))` and `k d + delta/2`: solve for e, with d = delta/(2 k).
    An example lies in the part looked at with probability 1/m, so an (eps', delta') look costs `(ln(1 +
    (e^eps' - 1)/m), delta'/m)`: `eps' = ln(1 + m (e^e - 1))`, at most 1 for the noise of NumericSparse to
    be enough, and `delta' = m d`. WIDE takes m e instead, which the sampling lemma does not give, and
    counts T iterations where T + 1 are run.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    parts, iterations = check_count("parts", parts), check_count("iterations", iterations)
    slack = math.sqrt(2.0 * iterations * math.log(2.0 / delta))

    def excess(e: float) -> float:
        return iterations * e * math.expm1(e) + e * slack - epsilon

    each = float(optimize.brentq(excess, 0.0, epsilon / slack, xtol=1e-15))
    allowed = min(1.0, math.log1p(parts * math.expm1(each)))
    chance = parts * delta / (2.0 * iterations)
    if chance >= 1.0:
        raise ValueError(f"parts must be below {2 * iterations / delta:.3g} at this delta, got {parts}")
    return IterationPrice(allowed, chance)


@dataclass(frozen=True)
class PartitionedERM:
    """WIDE Algorithm 2: `iterations` (the paper's T + 1) steps along published coordinates of part gradients.

    Fields are public: `linf_bound` c2 to which every gradient entry is clipped, `positives` c1 coordinates
    published an iteration, `threshold` (the paper's alpha when not given), `convex` (average iterate) or
    not (a random one).

    Guarantee: (epsilon, delta)-DP, replace-one (a record keeps its part), unit: example. Released: all
    iterates.
    Sensitivity: one record moves an entry of a part's mean gradient `(m/n) sum` by at most `2 c2 m / n`.
    Event: (eps', delta') of `iteration_price` for NumericSparse, by its own noise (Dwork and Roth 2014,
    theorem 3.28); sampling and composition as there.
    """

    linf_bound: float
    positives: int
    iterations: int
    step_size: float
    threshold: float | None = None
    convex: bool = True
    radius: float = math.inf

    def __post_init__(self) -> None:
        check_positive("linf_bound", self.linf_bound)
        check_count("positives", self.positives)
        check_count("iterations", self.iterations)
        check_positive("step_size", self.step_size)
        if self.threshold is not None:
            check_positive("threshold", self.threshold)
        if check_number("radius", self.radius) <= 0.0:
            raise ValueError(f"radius must be positive, got {self.radius}")

    def minimise(
        self,
        loss: SparseLoss,
        start: ArrayLike,
        *,
        parts: Sequence[ArrayLike],
        epsilon: float,
        delta: float,
        source: NoiseSource,
    ) -> Minimised:
        """Run from `start`; `parts` are the row numbers of each part, a public partition of equal parts."""
        iterate = Iterate(check_start(start, loss), self.radius)
        members = _check_parts(parts, loss.size)
        price = iteration_price(epsilon=epsilon, delta=delta, parts=len(members), iterations=self.iterations)
        last = self.iterations if self.convex else int(source.sampling.integers(self.iterations + 1, 1)[0])
        for part in source.sampling.integers(len(members), last):
            mean = self._part_gradient(loss, iterate.x, members[part])
            step = self._published(
                mean, 2.0 * self.linf_bound / members[0].size, price, loss.size, source.noise
            )
            iterate.move(step, -self.step_size)
        statement = PrivacyStatement(
            epsilon=epsilon,
            delta=delta,
            adjacency=REPLACE_ONE,
            unit="example",
            released="the average iterate" if self.convex else "a random iterate",
            private=source.is_private,
            notes=(f"{len(members)} parts of {members[0].size} examples, {self.iterations} iterations",),
        )
        return Minimised(iterate.average() if self.convex else iterate.x, last, statement)

    def _part_gradient(self, loss: SparseLoss, x: F64, rows: I64) -> SparseCounts:
        gradients: sparse.csr_array = without_broken_rows(loss.gradient_rows(x, rows))
        np.clip(gradients.data, -SAFE * self.linf_bound, SAFE * self.linf_bound, out=gradients.data)
        total = row_sum(gradients, np.ones(rows.size, dtype=bool))
        return SparseCounts(total.ids, total.values / rows.size, total.size)

    def _published(
        self, mean: SparseCounts, sensitivity: float, price: IterationPrice, size: int, stream: Stream
    ) -> SparseCounts:
        """NumericSparse of the mean gradient, with the noise of WIDE Algorithm 1."""
        unit = sensitivity * math.sqrt(32.0 * self.positives * math.log(2.0 / price.delta)) / price.epsilon
        finding, answering = unit / _THRESHOLD_SHARE, unit / (1.0 - _THRESHOLD_SHARE)
        logs = math.log(mean.size) + math.log(4.0 * self.positives * size)
        usual = 20.0 / math.sqrt(32.0) * unit * logs
        ids, values = numeric_sparse(
            mean.ids,
            mean.values,
            mean.size,
            threshold=usual if self.threshold is None else self.threshold,
            positives=self.positives,
            threshold_scale=finding,
            query_scale=2.0 * finding,
            answer_scale=2.0 * answering,
            stream=stream,
        )
        return SparseCounts(ids, values, mean.size)


def _check_parts(parts: Sequence[ArrayLike], size: int) -> list[I64]:
    members = [np.asarray(part, dtype=np.int64) for part in parts]
    if not members:
        raise ValueError("parts must hold at least one part")
    if any(part.ndim != 1 or part.size != members[0].size for part in members):
        raise ValueError("parts must be vectors of row numbers of one length")
    if not np.array_equal(np.sort(np.concatenate(members)), np.arange(size)):
        raise ValueError(f"parts must name every row of range({size}) exactly once")
    return members
