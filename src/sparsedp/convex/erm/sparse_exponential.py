"""The sparse exponential mechanism (SGO Algorithm 4): pure DP for convex losses that need not be smooth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import brentq

from sparsedp.accounting import PrivacyStatement
from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.convex.noise import DEFAULT_BETA
from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_count, check_delta, check_epsilon, check_positive
from sparsedp.mechanisms import exponential
from sparsedp.randomness import NoiseSource

_MOST_SQUARE = 10_000

Losses = Callable[[sparse.csr_array], F64]
"""(points, one a row) -> the empirical risk F_S at each."""


@dataclass(frozen=True)
class SparseExponentialResult:
    """The point drawn, its guarantee, and the theorem's bound on its excess empirical risk."""

    x: F64
    statement: PrivacyStatement
    error_bound: float
    tau: float
    net_size: int


@dataclass(frozen=True)
class SparseExponentialMechanism:
    """Draws a point of a sparse net over a ball with probability proportional to exp(-eps n F_S(x) / (2B)).

    The net: all points of the ball whose coordinates are multiples of tau. Cutting the coordinates of any
    point towards zero to multiples of tau gives one of them, moves no coordinate by tau, and leaves at most
    (radius / tau)^2 non-zeros: it is the tau-net of sparse vectors of the paper, without its union of balls.

    Parameters
    ----------
    epsilon : the budget of one draw.
    dimension, radius : the domain, a Euclidean ball around zero (a sparsifiable set).
    lipschitz, sparsity : L and s: every example's gradient has norm at most L and at most s non-zeros (or l1
        norm L sqrt(s)). They choose tau and bound the error; privacy does not need them.
    loss_range : B, a promise that privacy rests on: f(x, z) - f(y, z) <= B for all points x, y of the ball and
        *every possible* example z. ``None`` means 2 L radius, which follows from L.
    beta : how often ``error_bound`` may fail.
    tau : the mesh; chosen by the theorem unless given.
    most_points : the largest net that will be written down. It grows like (d / tau)^((radius / tau)^2).

    Guarantee: epsilon-DP and epsilon-bounded-range, replace-one adjacency, unit one example. Sensitivity:
    replacing z by z' moves n F_S(x) by f(x, z') - f(x, z), and these moves differ among points by at most 2B.
    Event: one epsilon-bounded-range draw. Released: the point. Proof: ``mechanisms.exponential``. (The paper
    prints the exponent and the equation for tau upside down.)
    """

    epsilon: float
    dimension: int
    radius: float
    lipschitz: float
    sparsity: int
    loss_range: float | None = None
    beta: float = DEFAULT_BETA
    tau: float | None = None
    most_points: int = 1_000_000

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_count("dimension", self.dimension)
        check_positive("radius", self.radius)
        check_positive("lipschitz", self.lipschitz)
        check_delta(self.beta, "beta")
        check_count("most_points", self.most_points)
        if check_count("sparsity", self.sparsity) > self.dimension:
            raise ValueError(f"sparsity must be at most the dimension {self.dimension}, got {self.sparsity}")
        for name in ("loss_range", "tau"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    @property
    def range(self) -> float:
        """B."""
        return 2 * self.lipschitz * self.radius if self.loss_range is None else self.loss_range

    def mesh(self, n: int) -> float:
        """tau: the root of tau^3 / ln(d / (tau beta)) = B / (L sqrt(s) eps n), in units of the radius."""
        if self.tau is not None:
            return self.tau
        slope = self.lipschitz * self.radius * math.sqrt(self.sparsity)
        target = self.range / (slope * self.epsilon * check_count("n", n))

        def excess(t: float) -> float:
            return t**3 - target * math.log(self.dimension / (t * self.beta))

        # At the right end the logarithm is ln(1/beta) or more, so the cube is already the larger side.
        right = max(1.0, self.dimension, 2 * target * math.log(self.dimension / self.beta))
        return self.radius * float(brentq(excess, 1e-9, right))

    def net_size(self, n: int) -> float:
        """How many points the net has: those with whole coordinates in a ball of radius (radius / tau)."""
        return lattice_points(self.dimension, self._budget(n))

    def draw(self, losses: Losses, n: int, source: NoiseSource | None = None) -> SparseExponentialResult:
        """A private near-minimiser of the empirical risk of ``n`` examples.

        ``losses`` returns F_S (the mean over the n examples) at every row of a CSR array of points.
        """
        tau, size = self.mesh(n), self.net_size(n)
        if size > self.most_points:
            raise ValueError(
                f"most_points is {self.most_points} and the net needs {size:.4g} points (tau = {tau:.3g}, up "
                f"to {self._budget(n)} non-zeros of {self.dimension}): give a larger tau or most_points, or fewer "
                "dimensions"
            )
        source = NoiseSource() if source is None else source
        net = lattice(self.dimension, self._budget(n)) * tau
        values = np.asarray(losses(net), dtype=np.float64)
        if values.shape != (net.shape[0],) or not np.isfinite(values).all():
            raise ValueError(
                f"losses must return one finite number for each of {net.shape[0]} points, got {values.shape}"
            )
        if float(values.max() - values.min()) > self.range * (1 + 1e-9):
            raise ValueError(
                f"loss_range must bound the range of every example's loss, but the mean of {n} alone spans more than "
                f"{self.range:.4g}: the promise that epsilon rests on is broken"
            )
        # Weights exp(eps score / (2 sensitivity)) with score = -n F_S and sensitivity B.
        chosen = exponential(-n * values, epsilon=self.epsilon, sensitivity=self.range, stream=source.noise)
        return SparseExponentialResult(
            x=np.asarray(net[[int(chosen)]].toarray()).ravel(),
            statement=PrivacyStatement(
                epsilon=self.epsilon,
                delta=0.0,
                adjacency=REPLACE_ONE,
                unit="example",
                released=f"one of {net.shape[0]} points, near the minimum of the risk of {n} examples",
                private=source.is_private,
            ),
            error_bound=self.error_bound(n),
            tau=tau,
            net_size=int(size),
        )

    def error_bound(self, n: int) -> float:
        """L sqrt(s) tau + (2B / (eps n)) ln(net size / beta): Theorem 5.5 with its constants."""
        discretised = self.lipschitz * math.sqrt(self.sparsity) * self.mesh(n)
        drawn = 2 * self.range / (self.epsilon * n) * (math.log(self.net_size(n)) + math.log(1 / self.beta))
        return discretised + drawn

    def _budget(self, n: int) -> int:
        """(radius / tau)^2, rounded down: the largest squared norm of a lattice point, and the most non-zeros."""
        square = (self.radius / self.mesh(n)) ** 2
        if square > _MOST_SQUARE:
            raise ValueError(
                f"tau must be at least {self.radius / math.sqrt(_MOST_SQUARE):.3g} for a net that can be counted, "
                f"got {self.mesh(n):.3g}"
            )
        return math.floor(square * (1 + 1e-12))


def lattice_points(dimension: int, square: int) -> float:
    """How many vectors of whole numbers have a squared norm of at most ``square``; exact below 2^53."""
    # One coordinate has one value of square 0 and two of square k^2; the counts of sums are convolutions.
    power = np.zeros(square + 1)
    power[np.arange(math.isqrt(square) + 1) ** 2] = 2.0
    power[0] = 1.0
    total, left = np.zeros(square + 1), dimension
    total[0] = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        while left:
            if left & 1:
                total = np.convolve(total, power)[: square + 1]
            left >>= 1
            power = np.convolve(power, power)[: square + 1]
    count = float(total.sum())
    return math.inf if math.isnan(count) else count


def lattice(dimension: int, square: int) -> sparse.csr_array:
    """All those vectors, one a row."""
    supports: list[list[int]] = []
    values: list[list[int]] = []
    for support, entries in _walk(dimension, 0, square):
        supports.append(support)
        values.append(entries)
    starts = np.cumsum([0, *(len(each) for each in supports)])
    columns = np.array([i for each in supports for i in each], dtype=np.int64)
    data = np.array([v for each in values for v in each], dtype=np.float64)
    return sparse.csr_array((data, columns, starts), shape=(len(supports), dimension))


def _walk(dimension: int, first: int, square: int) -> Iterator[tuple[list[int], list[int]]]:
    yield [], []
    for index in range(first, dimension):
        for size in range(1, math.isqrt(square) + 1):
            for support, entries in _walk(dimension, index + 1, square - size * size):
                for signed in (size, -size):
                    yield [index, *support], [signed, *entries]
