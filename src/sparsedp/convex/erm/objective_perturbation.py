"""Objective perturbation for linear models: noise in the function that is minimised, not in its minimiser.

Where the data curve the function, they push back against the noise, so it hurts less than the same noise on
the minimiser. This is Chaudhuri, Monteleoni and Sarwate (2011) and Kifer, Smith and Thakurta (2012), with a
proof for sparse rows (Laplace noise by the l1 norm of a gradient, not by the dimension) and tight constants.
"""

from __future__ import annotations

import math

import numpy as np

from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.convex.erm.domains import Unconstrained
from sparsedp.convex.erm.private_minimiser import PrivateMinimiser, minimiser_statement
from sparsedp.convex.erm.regularization import FREE_MARGIN, check_lambda
from sparsedp.convex.erm.risk import LinearRisk
from sparsedp.convex.erm.solver import Objective, check_solvable, minimise
from sparsedp.convex.neighbours import changed_terms, check_pure_or_delta
from sparsedp.convex.noise import GaussianNoise, LaplaceNoise, Noise
from sparsedp.core.validation import check_epsilon
from sparsedp.randomness import NoiseSource

_CURVATURE_SHARE = 0.1
"""The share of epsilon that covers the change of the Hessian, where lambda is chosen here."""
_SOLVER_SHARE = 0.01
"""The share of epsilon and delta that covers an inexact minimiser."""
_CHANCE = 1e-12
"""How often the noise may be longer than the solver is made for; no data decide about it."""


def objective_perturbation(
    risk: LinearRisk,
    *,
    epsilon: float,
    delta: float | None = None,
    lam: float | None = None,
    adjacency: str = REPLACE_ONE,
    source: NoiseSource | None = None,
) -> PrivateMinimiser:
    """The minimiser of F_S(x) + lam/2 |x|^2 + <b, x> / n with random b.

    Guarantee: (epsilon, delta)-DP under ``adjacency`` (replace-one, or add-or-remove-one with public n).
    Sensitivity: replacing an example moves the sum of gradients at a point by v, |v|_2 <= 2L, |v|_1 <= 2 L_1.
    Event: see the proof; not a Gaussian. Released: the minimiser.

    Proof: b -> x is one-to-one with b = -(n F'(x) + n lam x), so the log-ratio of the densities of x on two
    neighbours is that of the noise densities at b and b + v(x), plus that of two determinants.
    Determinants: one example adds a matrix of rank r and trace T to a Hessian of at least n lam, so theirs is
    at most c = r ln(1 + T / (r n lam)). Laplace noise of scale |v|_1 / (epsilon - c): pure DP at once. Gaussian
    noise: ln phi(b) - ln phi(b + v) is convex in v, and v(x) lies in a polytope that does not depend on b,
    so it is at most its value at one of the V corners other than zero; each is the privacy loss of a Gaussian
    mechanism of sensitivity at most 2L. Summing over corners, delta <= V delta_G(epsilon - c; 2L / std).
    A minimiser within gamma of the exact one is released with a little more noise, a mechanism of sensitivity
    2 gamma composed with the first, for 1% of the budget. A ``lam`` at which some data sets could not be solved
    that precisely is refused by public numbers (``check_solvable``).
    """
    if math.isfinite(risk.regularity.radius):
        raise ValueError("risk must have bounded gradients everywhere: use output perturbation on a domain")
    epsilon, delta = check_epsilon(epsilon), check_pure_or_delta(delta, risk.n)
    risk.verify(pure=delta == 0.0)
    source = NoiseSource() if source is None else source
    share = 1 - _SOLVER_SHARE
    if lam is None:
        lam = _choose_lambda(risk, share * epsilon, share * delta, adjacency)
    lam = check_lambda(lam)
    noise = objective_noise(risk, lam, share * epsilon, share * delta, adjacency)
    hiding, tolerance = _solver_noise(noise, risk, lam, epsilon - share * epsilon, delta - share * delta)
    check_solvable(
        risk,
        lam,
        Unconstrained(),
        lambda _: tolerance,
        linear_norm=noise.norm(risk.dimension, _CHANCE) / risk.n,
    )
    b = noise.add(np.zeros(risk.dimension), source.noise)
    solution = minimise(Objective(risk, lam, b / risk.n), Unconstrained(), tolerance=tolerance / 2)
    return PrivateMinimiser(
        x=hiding.add(solution.x, source.noise),
        statement=minimiser_statement(risk, epsilon, delta, adjacency, source),
        sensitivity=gradient_change(risk, adjacency, pure=delta == 0.0),
        noise_scale=noise.scale,
        lam=lam,
    )


def gradient_change(risk: LinearRisk, adjacency: str = REPLACE_ONE, *, pure: bool) -> float:
    """How far one example moves the *sum* of gradients at a point: in l1 for pure DP, else in l2."""
    regularity = risk.regularity
    return changed_terms(adjacency) * (regularity.lipschitz_l1 if pure else regularity.lipschitz)


def objective_noise(
    risk: LinearRisk, lam: float, epsilon: float, delta: float, adjacency: str = REPLACE_ONE
) -> Noise:
    """The noise b that makes the exact minimiser (epsilon, delta)-DP."""
    rest = epsilon - _determinant_cost(risk, lam)
    if rest <= 0:
        raise ValueError(
            f"lam must be above {_least_lambda(risk, epsilon):.3g} at epsilon = {epsilon:.3g}, got {lam:.3g}: "
            "else the change of the Hessian alone costs more"
        )
    change = gradient_change(risk, adjacency, pure=delta == 0.0)
    if delta == 0.0:
        return LaplaceNoise.calibrated(change, rest)
    corners = (risk.loss.bounds.slope_corners + 1) ** changed_terms(adjacency) - 1
    return GaussianNoise.calibrated(change, rest, delta / corners)


def _determinant_cost(risk: LinearRisk, lam: float) -> float:
    """c = r ln(1 + T / (r n lam)): the most that an example changes the log-determinant of the Hessian."""
    bounds = risk.loss.bounds
    r = bounds.curvature_rank
    return r * math.log1p(bounds.curvature_trace * risk.row_l2**2 / (r * risk.n * lam))


def _least_lambda(risk: LinearRisk, cost: float) -> float:
    """The lambda whose determinants cost this much of epsilon."""
    bounds = risk.loss.bounds
    r = bounds.curvature_rank
    return bounds.curvature_trace * risk.row_l2**2 / (r * risk.n * math.expm1(cost / r))


def _choose_lambda(risk: LinearRisk, epsilon: float, delta: float, adjacency: str) -> float:
    """Large enough that determinants cost little, and that noise alone does not decide about a row.

    A direction that the data say nothing of has a parameter of noise / (n lam); the margin of a row of norm
    ``row_l2`` along such directions then scatters by FREE_MARGIN. All of it is public.
    """
    floor = _least_lambda(risk, _CURVATURE_SHARE * epsilon)
    noise = objective_noise(risk, floor, epsilon, delta, adjacency)
    spread = noise.scale * (math.sqrt(2) if delta == 0.0 else 1.0)
    return max(floor, spread * risk.row_l2 / (risk.n * FREE_MARGIN))


def _solver_noise(
    noise: Noise, risk: LinearRisk, lam: float, epsilon: float, delta: float
) -> tuple[Noise, float]:
    """A hundredth of what the noise makes of a parameter, and the tolerance that this hides."""
    scale = _SOLVER_SHARE * noise.scale / (risk.n * lam)
    if delta == 0.0:
        gamma = scale * epsilon / 2  # in l1
        return LaplaceNoise(scale), lam * gamma / math.sqrt(risk.dimension)
    gamma = scale / (2 * analytic_gaussian_sigma(epsilon, delta))
    return GaussianNoise(scale), lam * gamma
