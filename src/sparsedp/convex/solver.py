"""Minimisers with a certificate: how far from the exact one they are at most.

Output perturbation hides the *exact* minimiser of a strongly convex function, so a solver must not only come
close but prove how close. With modulus lambda, a point x with a subgradient u of "function plus indicator of
the domain" lies within |u| / lambda of the minimiser, and its value within |u|^2 / (2 lambda).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from sparsedp.convex.domains import Domain, Everywhere, euclidean_nearest
from sparsedp.convex.risk import EmpiricalRisk
from sparsedp.mechanisms.histogram import Floats

_NEWTON_STEPS = 200
_GRADIENT_STEPS = 50_000


class NotSolved(RuntimeError):
    """A minimiser could not be brought within the tolerance that its privacy needs. Nothing was released."""


@dataclass(frozen=True)
class Objective:
    """F_S(x) + lam/2 |x|^2 + <linear, x>."""

    risk: EmpiricalRisk
    lam: float
    linear: Floats | float = 0.0

    def gradient(self, x: Floats) -> Floats:
        """That of all three terms."""
        return self.risk.value_and_gradient(x)[1] + self.lam * x + self.linear

    def hessian_at(self, x: Floats) -> LinearOperator:
        """Its Hessian, where the risk has one."""
        product = self.risk.hessian_at(x)

        def times(v: Floats) -> Floats:
            assert product is not None
            return product(v.ravel()) + self.lam * v.ravel()

        return LinearOperator((x.size, x.size), matvec=times, dtype=np.float64)


@dataclass(frozen=True)
class Minimiser:
    """A point and the norms of a subgradient there, its certificate."""

    x: Floats
    subgradient: Floats

    @property
    def residual(self) -> float:
        """The l2 norm of the subgradient."""
        return float(np.linalg.norm(self.subgradient))


def minimise(objective: Objective, domain: Domain, *, tolerance: float) -> Minimiser:
    """The minimiser over ``domain``, certified: ``residual <= tolerance``, or ``NotSolved``."""
    start = np.zeros(objective.risk.dimension)
    if objective.risk.hessian_at(start) is not None:
        free = _newton(objective, start, tolerance)
        if isinstance(domain, Everywhere) or np.array_equal(euclidean_nearest(domain, free.x), free.x):
            return _certified(free, tolerance)
        start = free.x
    return _certified(_projected_gradient(objective, domain, start, tolerance), tolerance)


def _certified(solution: Minimiser, tolerance: float) -> Minimiser:
    if not solution.residual <= tolerance:
        raise NotSolved(
            f"the minimiser was not reached: gradient norm {solution.residual:.3g}, privacy needs "
            f"{tolerance:.3g}; a larger lam makes the problem easier"
        )
    return solution


def _newton(objective: Objective, x: Floats, tolerance: float) -> Minimiser:
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


def _projected_gradient(objective: Objective, domain: Domain, x: Floats, tolerance: float) -> Minimiser:
    """Accelerated projected gradients for a strongly convex function, restarted when momentum misleads.

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
            break
        root = (objective.lam * step) ** 0.5
        momentum = 0.0 if float((y - moved) @ (moved - x)) > 0 else (1 - root) / (1 + root)
        y = euclidean_nearest(domain, moved + momentum * (moved - x)) if momentum else moved
        x, gradient = moved, objective.gradient(y)
    return best
