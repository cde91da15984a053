"""Objective perturbation for linear models: noise in the function that is minimised, not in its minimiser.

Where the data curve the function, they push back against the noise, so it hurts less than the same noise on
the minimiser. This is Chaudhuri, Monteleoni and Sarwate (2011) and Kifer, Smith and Thakurta (2012), with a
proof for sparse rows (Laplace noise by the l1 norm of a gradient, not by the dimension) and tight constants.
"""

from __future__ import annotations

import math

from sparsedp.accounting import PrivacyStatement, analytic_gaussian_sigma
from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.accounting.validation import check_epsilon
from sparsedp.convex.domains import Everywhere
from sparsedp.convex.neighbours import adjacency_notes, changed_terms, check_pure_or_delta
from sparsedp.convex.noise import GaussianNoise, LaplaceNoise, Noise
from sparsedp.convex.output_perturbation import PrivateMinimiser
from sparsedp.convex.regularization import check_lambda
from sparsedp.convex.risk import LinearRisk
from sparsedp.convex.solver import Objective, minimise
from sparsedp.mechanisms.histogram import Floats
from sparsedp.randomness import NoiseSource

import numpy as np

_CURVATURE_SHARE = 0.1
"""The share of epsilon that pays for the change of the Hessian, where lambda is chosen here."""
_SOLVER_SHARE = 0.01
"""The share of epsilon and delta that pays for a minimiser which is not exact."""
_FREE_MARGIN = 0.5
"""Where lambda is chosen here: the spread of the margin of a longest row, were it made of noise alone."""


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
    Sensitivity: replacing an example changes the sum of gradients at a point by v, |v|_2 <= 2L, |v|_1 <= 2 L_1.
    Event: see the proof; not a Gaussian. Released: the minimiser.

    Proof: b -> x is one-to-one with b = -(n F'(x) + n lam x), so the log-ratio of the densities of x on two
    neighbours is that of the noise densities at b and b + v(x), plus that of two determinants.
    Determinants: one example adds a matrix of rank r and trace T to a Hessian of at least n lam, so theirs is at
    most c = r ln(1 + T / (r n lam)). Laplace noise of scale |v|_1 / (epsilon - c): pure DP at once. Gaussian
    noise: ln phi(b) - ln phi(b + v) is convex in v, and v(x) lies in a polytope that does not depend on b,
    so it is at most its value at one of the V corners other than zero; each is the privacy loss of a Gaussian
    mechanism of sensitivity at most 2L. Summing over corners, delta <= V delta_G(epsilon - c; 2L / std).
    A minimiser within gamma of the exact one is released with a little more noise, a mechanism of sensitivity
    2 gamma composed with the first, for 1% of the budget.
    """
    epsilon, delta = check_epsilon(epsilon), check_pure_or_delta(delta, risk.n)
    source = NoiseSource() if source is None else source
    kept = 1 - _SOLVER_SHARE
    lam = _choose_lambda(risk, kept * epsilon, kept * delta, adjacency) if lam is None else check_lambda(lam)
    noise = objective_noise(risk, lam, kept * epsilon, kept * delta, adjacency)
    hiding, tolerance = _solver_noise(noise, risk, lam, epsilon - kept * epsilon, delta - kept * delta)
    b = noise.add(np.zeros(risk.dimension), source.noise)
    solution = minimise(Objective(risk, lam, b / risk.n), Everywhere(), tolerance=tolerance)
    return PrivateMinimiser(
        x=hiding.add(solution.x, source.noise),
        statement=PrivacyStatement(
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency,
            unit="example",
            released=f"{risk.dimension} parameters fitted to {risk.n} examples",
            private=source.is_private,
            notes=adjacency_notes(adjacency),
        ),
        lam=lam,
        sensitivity=gradient_change(risk, adjacency, pure=delta == 0.0),
        noise_scale=noise.scale,
        error_bound=None,
        beta=math.nan,
        residual=solution.residual,
    )
