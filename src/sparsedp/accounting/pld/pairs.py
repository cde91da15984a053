"""Dominating pairs: what an event costs, as two distributions P and Q and the loss ln(P/Q) between them.

A mechanism is dominated by (P, Q) when its delta at every epsilon, on every pair of neighbours, is at most
that of P against Q; compositions of mechanisms are then dominated by products of their pairs (Zhu, Dong and
Wang 2022, theorem 10). P stands for the data set with the record, Q for the one without it; exchanged they
dominate the other direction. `symmetric` pairs have the same losses either way.

A pair answers in *cells*: the masses that P and Q put on losses between given edges. Both are computed to
relative precision far into the tails, so that a delta of 1e-30 after 1e7 compositions keeps its digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import ndtr, ndtri_exp
from typing_extensions import override

from sparsedp.core.arrays import F64

LARGEST_LOSS = 1e9
"""Losses above this count as infinite: an epsilon so large protects nothing."""

LARGEST_SHIFT = math.sqrt(2 * LARGEST_LOSS)
"""A Gaussian moved by this many standard deviations has a loss of about `LARGEST_LOSS`."""

SKETCH = 1000
"""How many edges a sketch of a pair's losses has."""


class NoPrivacy(Exception):
    """Some event publishes the data: epsilon is infinite at every delta below 1."""


class Unresolved(Exception):
    """Losses are too far apart, or too large, for a composition on a grid of floats."""


class Pair(Protocol):
    """Two distributions P and Q, seen through the loss ln(P/Q)."""

    @property
    def symmetric(self) -> bool:
        """Whether (Q, P) has the same losses as (P, Q)."""

    def cells(self, edges: F64) -> tuple[F64, F64]:
        """The masses (of P, of Q) on losses below `edges[0]`, between consecutive edges, above `edges[-1]`.

        A loss equal to an edge may be counted on either side of it.
        """

    def span(self, tail: float) -> tuple[float, float]:
        """Losses (low, high) such that the Q-mass below and the P-mass above are at most `tail` each."""

    def sketch(self, tail: float) -> F64:
        """Edges over the span, a few thousand at most, spaced as this pair's losses are."""


def normal_cells(z: F64) -> F64:
    """Standard normal masses below z[0], between consecutive z, and above z[-1], to relative precision."""
    low, high = z[:-1], z[1:]
    with np.errstate(invalid="ignore", over="ignore"):
        width, middle = high - low, 0.5 * (low + high)
        square = middle * middle
        # Narrow cells by the midpoint rule and its correction: subtracting close cdfs would lose the digits.
        inner = (
            np.exp(-0.5 * square) * width * (1 + (square - 1) * width * width / 24) / math.sqrt(2 * math.pi)
        )
        wide = ~(width * (1 + np.abs(middle)) < 1e-3)
    if wide.any():
        a, b = low[wide], high[wide]
        right = a > 0  # subtract survival functions on the right of zero, cdfs on the left
        inner[wide] = ndtr(np.where(right, -a, b)) - ndtr(np.where(right, -b, a))
    return np.concatenate([ndtr(z[:1]), inner, ndtr(-z[-1:])])


def normal_quantile(tail: float) -> float:
    """z >= 0 with Psi(z) = min(tail, 1/2)."""
    return max(-float(ndtri_exp(math.log(tail))), 0.0)


@dataclass(frozen=True)
class Gaussian(Pair):
    """N(mu, 1) against N(0, 1): the loss is N(mu^2/2, mu^2) under P and N(-mu^2/2, mu^2) under Q."""

    mu: float
    symmetric: ClassVar[bool] = True

    @override
    def cells(self, edges: F64) -> tuple[F64, F64]:
        z = edges / self.mu
        return normal_cells(z - self.mu / 2), normal_cells(z + self.mu / 2)

    @override
    def span(self, tail: float) -> tuple[float, float]:
        high = self.mu * (self.mu / 2 + normal_quantile(tail))
        return -high, high

    @override
    def sketch(self, tail: float) -> F64:
        return np.linspace(*self.span(tail), SKETCH)


@dataclass(frozen=True, eq=False)
class Atoms(Pair):
    """Finitely many losses: P puts `p[i]`, Q puts `q[i] = p[i] exp(-losses[i])` on `losses[i]` (ascending).

    `infinity` is the P-mass where Q has none, `minus_infinity` the Q-mass where P has none.
    """

    losses: F64
    p: F64
    q: F64
    infinity: float = 0.0
    minus_infinity: float = 0.0
    symmetric: bool = False

    @override
    def cells(self, edges: F64) -> tuple[F64, F64]:
        cell = np.searchsorted(edges, self.losses)
        p: F64 = np.bincount(cell, weights=self.p, minlength=len(edges) + 1).astype(np.float64)
        q: F64 = np.bincount(cell, weights=self.q, minlength=len(edges) + 1).astype(np.float64)
        p[-1] += self.infinity
        q[0] += self.minus_infinity
        return p, q

    @override
    def span(self, tail: float) -> tuple[float, float]:
        return float(self.losses[0]), float(self.losses[-1])

    @override
    def sketch(self, tail: float) -> F64:
        between = (self.losses[:-1] + self.losses[1:]) / 2
        stride = max(1, len(between) // SKETCH)
        return between[::stride] if len(between) else self.losses + 1.0


def randomized_response(epsilon: float) -> Atoms:
    """The pair that dominates every epsilon-DP mechanism."""
    truth = 1 / (1 + math.exp(-epsilon))
    lie = math.exp(-epsilon) * truth
    losses = np.array([-epsilon, epsilon])
    return Atoms(losses, np.array([lie, truth]), np.array([truth, lie]), symmetric=True)


def published_with(chance: float) -> Atoms:
    """The record is published with this probability, else nothing depends on it: (0, chance)-DP."""
    stays = 1 - chance
    return Atoms(np.array([math.log1p(-chance)]), np.array([stays]), np.ones(1), infinity=chance)


def bucket_response(noise: float, buckets: int) -> Atoms:
    """Randomised response over k buckets: with probability `noise` a bucket at random, else the true one."""
    other = noise / buckets
    truth = 1 - noise + other
    loss = math.log(truth) - (math.log(noise) - math.log(buckets))
    p = np.array([other, (buckets - 2) * other, truth])
    return Atoms(np.array([-loss, 0.0, loss]), p, p[::-1].copy(), symmetric=True)


def discrete_laplace(parameter: float, sensitivity: int) -> Atoms:
    """Integer noise with mass proportional to exp(-parameter |x|), moved by `sensitivity`."""
    # Between the two centres the loss steps by 2 * parameter; outside it is constant, so the tails are two
    # atoms.
    position = np.arange(sensitivity + 1)
    mass = math.tanh(parameter / 2) * np.exp(-parameter * (sensitivity - position))
    tail = 1 / (1 + math.exp(-parameter))
    mass[-1] = tail
    mass[0] = math.exp(-parameter * sensitivity) * tail
    losses: F64 = np.asarray(parameter * (2.0 * position - sensitivity), dtype=np.float64)
    return Atoms(losses, mass, mass[::-1].copy(), symmetric=True)


@dataclass(frozen=True)
class Weighted(Pair):
    """One of two pairs, chosen by a coin of known bias whose outcome is published."""

    weight: float
    first: Pair
    second: Pair

    @property
    @override
    def symmetric(self) -> bool:
        return self.first.symmetric and self.second.symmetric

    @override
    def cells(self, edges: F64) -> tuple[F64, F64]:
        (p1, q1), (p2, q2) = self.first.cells(edges), self.second.cells(edges)
        return self.weight * p1 + (1 - self.weight) * p2, self.weight * q1 + (1 - self.weight) * q2

    @override
    def span(self, tail: float) -> tuple[float, float]:
        (low1, high1), (low2, high2) = self.first.span(tail), self.second.span(tail)
        return min(low1, low2), max(high1, high2)

    @override
    def sketch(self, tail: float) -> F64:
        return np.unique(np.concatenate([self.first.sketch(tail), self.second.sketch(tail)]))
