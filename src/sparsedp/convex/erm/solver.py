"""Minimisers with a certificate: an upper bound on the distance to the exact one.

Output perturbation hides the *exact* minimiser of a strongly convex function, so a solver must not only come
close but prove how close. With modulus lambda, a point x with a subgradient u of "function plus indicator of
the domain" lies within |u| / lambda of the minimiser, and its value within |u|^2 / (2 lambda).

A solver that fails on some data sets tells which by failing. `check_solvable` therefore refuses, by public
numbers and before any data are looked at, whatever `minimise` cannot promise to solve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from sparsedp.convex.erm.domains import Domain, euclidean_nearest, largest_norm
from sparsedp.convex.erm.risk import MOST_ENTRIES, SUM_BLOCK, EmpiricalRisk
from sparsedp.core.arrays import F64

_NEWTON_STEPS = 200
_GRADIENT_STEPS = 50_000
_UNIT_ROUNDOFF = 2.0**-53
_ROUNDING_SHARE = 0.25
"""The share of a tolerance that the rounding of a gradient may take up."""


class NotSolved(RuntimeError):
    """A minimiser could not be brought within the tolerance that its privacy needs. Nothing was released.

    ``check_solvable`` rules this out for risks that keep their promises: it shows a broken one.
    """


def check_solvable(
    risk: EmpiricalRisk,
    lam: float,
    domain: Domain,
    tolerance: Callable[[float], float],
    *,
    linear_norm: float = 0.0,
) -> None:
    """Refuse a ``lam`` at which `minimise` might miss ``tolerance(lam)`` on some data.

    Looks at public numbers alone. ``linear_norm`` bounds the linear term of the objective.

    Proof: accelerated gradients with the momentum of modulus lam bring value and distance, at first at most
    4 G^2 / lam for a gradient of norm G there, down by a factor 1 - sqrt(lam / (H + lam)) a step; a plain step
    then has a subgradient of norm at most sqrt(8 (H + lam) (value - least value)). G is at most
    3 (L + |linear|) + lam |nearest point to zero|, wherever Newton's method left off.
    Rounding: a sum of k terms is off by k 2^-53 of the sum of magnitudes. Terms are added by row (k = d, on
    average at most MOST_ENTRIES / n) and by block (k = SUM_BLOCK).
    """
    if risk.regularity.smoothness is None:
        raise ValueError(
            "regularity must state a smoothness: whether a minimiser of a loss that is not smooth is found "
            "depends on the data, which failure would reveal; round its corners (SmoothedHingeLoss)"
        )

    def solvable(candidate: float) -> bool:
        public = _PublicProblem(risk, candidate, domain, linear_norm)
        goal = tolerance(candidate)
        return public.steps(goal / 2) <= _GRADIENT_STEPS and public.rounding() <= _ROUNDING_SHARE * goal

    if solvable(lam):
        return
    larger = lam * 2.0 ** np.arange(1, 80)
    enough = next((each for each in larger if solvable(float(each))), None)
    if enough is None:
        raise ValueError(
            f"n = {risk.n} and dimension = {risk.dimension} are too large for float64 to find a minimiser as "
            "precisely as privacy needs, whatever lam: use noisy_descent"
        )
    raise ValueError(
        f"lam must be larger, about {enough:.2g}, got {lam:.3g}: below, some data would not be solved as precisely as "
        "privacy needs, and a failure would tell which"
    )


@dataclass(frozen=True)
class _PublicProblem:
    """What is known of an objective without its data."""

    risk: EmpiricalRisk
    lam: float
    domain: Domain
    linear_norm: float

    @property
    def slope(self) -> float:
        """How steep it is at zero, but for the regularisation."""
        return self.risk.regularity.lipschitz + self.linear_norm

    @property
    def smoothness(self) -> float:
        """H + lam."""
        return (self.risk.regularity.smoothness or 0.0) + self.lam

    def steps(self, tolerance: float) -> float:
        """After how many accelerated steps the certificate is within ``tolerance`` on any data."""
        nearest = float(np.linalg.norm(euclidean_nearest(self.domain, np.zeros(self.risk.dimension))))
        steepest = 3 * self.slope + self.lam * nearest
        ratio = self.smoothness / self.lam
        return 2 + math.sqrt(ratio) * math.log(32 * ratio * (steepest / tolerance) ** 2)

    def rounding(self) -> float:
        """How far a computed gradient may be from the true one at the points that matter."""
        reach = min(largest_norm(self.domain, self.risk.dimension), 3 * self.slope / self.lam)
        n, d = self.risk.n, self.risk.dimension
        by_row = min(d, MOST_ENTRIES / n) + 8
        by_block = min(n, SUM_BLOCK) + n / SUM_BLOCK + 8
        return _UNIT_ROUNDOFF * (by_block * self.slope + by_row * self.smoothness * reach)


@dataclass(frozen=True)
class Objective:
    """F_S(x) + lam/2 |x|^2 + <linear, x>."""

    risk: EmpiricalRisk
    lam: float
    linear: F64 | float = 0.0

    def gradient(self, x: F64) -> F64:
        """That of all three terms."""
        return self.risk.value_and_gradient(x)[1] + self.lam * x + self.linear

    def hessian_at(self, x: F64) -> LinearOperator:
        """Its Hessian, where the risk has one."""
        product = self.risk.hessian_at(x)

        def times(v: F64) -> F64:
            assert product is not None
            return product(v.ravel()) + self.lam * v.ravel()

        return LinearOperator((x.size, x.size), matvec=times, dtype=np.float64)


@dataclass(frozen=True)
class Minimiser:
    """A point and the norms of a subgradient there, its certificate."""

    x: F64
    subgradient: F64

    @property
    def residual(self) -> float:
        """The l2 norm of the subgradient."""
        return float(np.linalg.norm(self.subgradient))


def minimise(objective: Objective, domain: Domain, *, tolerance: float) -> Minimiser:
    """The minimiser over ``domain``, certified: ``residual <= tolerance``, or ``NotSolved``.

    Newton's method where there is a Hessian, and where that falls short, or leaves the domain, accelerated
    gradients, which do not fail on what ``check_solvable`` has passed.
    """
    start = np.zeros(objective.risk.dimension)
    if objective.risk.hessian_at(start) is not None:
        free = _newton(objective, start, tolerance)
        if free.residual <= tolerance and np.array_equal(euclidean_nearest(domain, free.x), free.x):
            return free
        start = free.x
    return _certified(_accelerated(objective, domain, start, tolerance), tolerance)


def _certified(solution: Minimiser, tolerance: float) -> Minimiser:
    if not solution.residual <= tolerance:
        raise NotSolved(
            f"the minimiser was not reached: gradient norm {solution.residual:.3g}, privacy needs "
            f"{tolerance:.3g}; a larger lam makes the problem easier"
        )
    return solution


def _newton(objective: Objective, x: F64, tolerance: float) -> Minimiser:
    """Newton's method by conjugate gradients, steps halved until the norm of the gradient falls.

    The norm of the gradient, unlike the value, keeps its precision down to the end.
    """
    gradient = objective.gradient(x)
    first = norm = float(np.linalg.norm(gradient))
    for _ in range(_NEWTON_STEPS):
        if norm <= tolerance:
            break
        step, _ = cg(
            objective.hessian_at(x), -gradient, rtol=min(0.1, (norm / first) ** 0.5), atol=tolerance / 10
        )
        length = 1.0
        while True:
            moved = x + length * step
            after = objective.gradient(moved)
            if float(np.linalg.norm(after)) < (1 - 1e-4 * length) * norm:
                break
            length /= 2
            if length < 1e-10:
                return Minimiser(x, gradient)
        x, gradient, norm = moved, after, float(np.linalg.norm(after))
    return Minimiser(x, gradient)


def _accelerated(objective: Objective, domain: Domain, x: F64, tolerance: float) -> Minimiser:
    """Accelerated projected gradients for a function of modulus lam (Nesterov's constant momentum).

    After a step from y to x = P(y - t g(y)), ``g(x) - g(y) + (y - x)/t`` is a subgradient at x.
    """
    smoothness = objective.risk.regularity.smoothness
    step = 1.0 if smoothness is None else 1 / (smoothness + objective.lam)
    x = y = euclidean_nearest(domain, x)
    gradient = objective.gradient(y)
    best = Minimiser(x, gradient)
    for _ in range(_GRADIENT_STEPS):
        moved = euclidean_nearest(domain, y - step * gradient)
        after = objective.gradient(moved)
        if np.linalg.norm(after - gradient) > (1 + 1e-9) * np.linalg.norm(moved - y) / step:
            step /= 2  # longer than the function is smooth
            continue
        best = Minimiser(moved, after - gradient + (y - moved) / step)
        if best.residual <= tolerance:
            return best
        root = (objective.lam * step) ** 0.5
        y = euclidean_nearest(domain, moved + (1 - root) / (1 + root) * (moved - x))
        x, gradient = moved, objective.gradient(y)
    gradient = objective.gradient(x)  # the promised one: a plain step from the last point
    moved = euclidean_nearest(domain, x - step * gradient)
    plain = Minimiser(moved, objective.gradient(moved) - gradient + (x - moved) / step)
    return min(best, plain, key=lambda each: each.residual)
