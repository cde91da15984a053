"""The empirical risk F_S of SGO section 5: the mean of n convex losses, and what they promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sparsedp.convex.clip import as_rows, row_norms, zero_broken_rows, zero_other_rows
from sparsedp.convex.erm.losses import MarginLoss, check_at_least
from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_count, check_number, check_positive

Product = Callable[[F64], F64]

SUM_BLOCK = 2**16
"""How many examples are added up in one go."""
MOST_ENTRIES = 2**33
"""How many numbers a matrix of rows may hold."""


@dataclass(frozen=True)
class Regularity:
    """What holds for the gradient of *every possible* example at every point of the domain.

    ``lipschitz`` and ``lipschitz_l1`` bound its l2 and l1 norm. ``smoothness`` and ``smoothness_l1`` bound
    the l2 and l1 norm of its change over an l2 distance of one; None where the loss is not smooth. All of it
    holds for parameters of norm ``radius`` at most: infinite where it holds everywhere, finite where the
    loss is Lipschitz on a bounded domain only, like the squared loss.

    No vector has an l1 norm below its l2 norm, so numbers that would say so are refused.
    """

    lipschitz: float
    lipschitz_l1: float
    smoothness: float | None = None
    smoothness_l1: float | None = None
    radius: float = math.inf

    def __post_init__(self) -> None:
        check_positive("lipschitz", self.lipschitz)
        check_at_least("lipschitz_l1", self.lipschitz_l1, "lipschitz", self.lipschitz)
        if (self.smoothness is None) != (self.smoothness_l1 is None):
            raise ValueError("smoothness and smoothness_l1 must be given together")
        if self.smoothness is not None and self.smoothness_l1 is not None:
            check_positive("smoothness", self.smoothness)
            check_at_least("smoothness_l1", self.smoothness_l1, "smoothness", self.smoothness)
        if not check_number("radius", self.radius) > 0.0:
            raise ValueError(f"radius must be positive, got {self.radius}")

    @classmethod
    def sparse(
        cls, lipschitz: float, sparsity: int, smoothness: float | None = None, radius: float = math.inf
    ) -> Regularity:
        """From assumptions A.5 to A.7: L-Lipschitz, H-smooth, gradients with at most s non-zeros.

        A gradient lies in the l1 ball of radius L sqrt(s); two gradients differ in at most 2s coordinates.
        """
        s = check_count("sparsity", sparsity)
        lipschitz_l1 = check_positive("lipschitz", lipschitz) * math.sqrt(s)
        if smoothness is None:
            return cls(lipschitz, lipschitz_l1, radius=radius)
        h = check_positive("smoothness", smoothness)
        return cls(lipschitz, lipschitz_l1, h, math.sqrt(2 * s) * h, radius)


class EmpiricalRisk(Protocol):
    """The mean of n losses over a data set: private inside, but for these public properties."""

    @property
    def n(self) -> int:
        """How many examples (public under replace-one adjacency)."""
        ...

    @property
    def dimension(self) -> int:
        """How many parameters."""
        ...

    @property
    def regularity(self) -> Regularity:
        """What is promised of every example's loss."""
        ...

    def verify(self, *, pure: bool) -> None:
        """Refuse data that break the promise, as far as that can be seen; the l1 bounds count for pure DP."""
        ...

    def value_and_gradient(self, x: F64) -> tuple[float, F64]:
        """F_S(x) and its gradient."""
        ...

    def hessian_at(self, x: F64) -> Product | None:
        """Products with the Hessian at x, if they are to be had."""
        ...


@dataclass(frozen=True)
class FunctionRisk:
    """Any convex risk given by functions.

    ``value_and_gradient(x)`` returns the *mean* loss and its gradient. The regularity is a promise that the
    privacy proof rests on: it must hold for any example that might be in the data, not just for those in it. So
    must finite numbers: only the functions can leave out an example whose loss is NaN, and they have to.
    """

    value_and_gradient_function: Callable[[F64], tuple[float, F64]]
    n: int
    dimension: int
    regularity: Regularity
    hessian_function: Callable[[F64], Product] | None = None

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_count("dimension", self.dimension)

    def verify(self, *, pure: bool) -> None:
        """Functions cannot be checked: the promised regularity is taken as given."""

    def value_and_gradient(self, x: F64) -> tuple[float, F64]:
        """As given, checked."""
        value, gradient = self.value_and_gradient_function(x)
        gradient = np.asarray(gradient, dtype=np.float64)
        if gradient.shape != (self.dimension,):
            raise ValueError(f"gradient must have shape ({self.dimension},), got {gradient.shape}")
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            raise ValueError("value_and_gradient returned NaN or an infinity")
        return float(value), gradient

    def hessian_at(self, x: F64) -> Product | None:
        """As given."""
        return None if self.hessian_function is None else self.hessian_function(x)


@dataclass(frozen=True)
class LinearRisk:
    """The risk of a linear model: ``loss(x_i W, y_i)``, rows of l2 norm ``row_l2`` and l1 norm ``row_l1``.

    Privacy rests on ``row_l2``, and in pure DP on ``row_l1``, which else only guides the choice of lambda.
    The parameters are W, d by outputs, as one vector. A GLM's gradients at two points have the same support,
    so ``smoothness_l1`` needs no factor sqrt(2): ||slope - slope'||_1 ||x||_1 <= sqrt(K) curvature |x| |x|_1.

    An example whose row or target is not finite counts as zero: its gradient is zero at every point. Other
    targets that the loss has no bounds for are refused.
    """

    rows: Any = field(repr=False)
    targets: F64 = field(repr=False)
    loss: MarginLoss
    row_l2: float
    row_l1: float

    def __post_init__(self) -> None:
        check_positive("row_l2", self.row_l2)
        check_at_least("row_l1", self.row_l1, "row_l2", self.row_l2)
        targets = np.asarray(self.targets, dtype=np.float64)
        if targets.shape != (self.n,):
            raise ValueError(f"targets must be one per row, got shape {targets.shape} for {self.n} rows")
        rows, _ = zero_broken_rows(as_rows(self.rows))
        if rows.size > MOST_ENTRIES:
            raise ValueError(f"rows must hold at most {MOST_ENTRIES} numbers, got {rows.size}")
        known = np.isfinite(targets)
        object.__setattr__(self, "rows", rows if known.all() else zero_other_rows(rows, known))
        object.__setattr__(self, "targets", np.where(known, targets, self.loss.empty_target))
        self.loss.check_targets(self.targets)

    @property
    def n(self) -> int:
        """How many examples."""
        return int(self.rows.shape[0])

    @property
    def dimension(self) -> int:
        """Features times outputs."""
        return int(self.rows.shape[1]) * self.loss.outputs

    @property
    def regularity(self) -> Regularity:
        """Bounds of slopes times bounds of rows."""
        bounds = self.loss.bounds
        bent = bounds.curvature * self.row_l2
        return Regularity(
            lipschitz=bounds.slope_l2 * self.row_l2,
            lipschitz_l1=bounds.slope_l1 * self.row_l1,
            smoothness=bent * self.row_l2,
            smoothness_l1=math.sqrt(self.loss.outputs) * bent * self.row_l1,
            radius=bounds.margin_bound / self.row_l2,
        )

    def verify(self, *, pure: bool) -> None:
        """Refuse rows longer than promised; ``clip_rows`` makes them fit."""
        for order, bound in ((2, self.row_l2), (1, self.row_l1)):
            if (order == 2 or pure) and not float(row_norms(self.rows, order).max()) <= bound * (1 + 1e-12):
                raise ValueError(
                    f"rows must have l{order} norms of at most {bound:g}: shorten them with clip_rows"
                )

    def margins(self, x: F64) -> F64:
        """One row of margins an example."""
        return np.asarray(self.rows @ x.reshape(-1, self.loss.outputs))

    def pull_back(self, slopes: F64) -> F64:
        """The mean over examples of ``slope (x) x``, a block at a time: long sums round more."""
        total = np.zeros((self.rows.shape[1], slopes.shape[1]))
        for start in range(0, self.n, SUM_BLOCK):
            block = slice(start, start + SUM_BLOCK)
            total += (self.rows if self.n <= SUM_BLOCK else self.rows[block]).T @ slopes[block]
        return total.ravel() / self.n

    def value_and_gradient(self, x: F64) -> tuple[float, F64]:
        """Two products with the rows."""
        margins = self.margins(x)
        value = float(self.loss.value(margins, self.targets).mean())
        return value, self.pull_back(self.loss.slopes(margins, self.targets))

    def hessian_at(self, x: F64) -> Product:
        """Two products with the rows each."""
        margins = self.margins(x)
        return lambda v: self.pull_back(self.loss.bend(margins, self.targets, self.margins(v)))
