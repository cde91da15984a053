"""Output perturbation with l_inf projection (SGO Algorithm 3)."""

from __future__ import annotations

import math

from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.convex.erm.domains import Domain, Unconstrained, largest_norm
from sparsedp.convex.erm.private_minimiser import PrivateMinimiser, minimiser_statement
from sparsedp.convex.erm.regularization import Goal, check_lambda, theorem_lambda
from sparsedp.convex.erm.risk import EmpiricalRisk
from sparsedp.convex.erm.solver import Minimiser, Objective, check_solvable, minimise
from sparsedp.convex.neighbours import changed_terms, check_adjacency, check_pure_or_delta
from sparsedp.convex.noise import DEFAULT_BETA, GaussianNoise, LaplaceNoise, Noise
from sparsedp.core.validation import check_delta, check_epsilon, check_positive
from sparsedp.mechanisms import project_linf
from sparsedp.randomness import NoiseSource

SLACK = 0.01
"""The share of the sensitivity that covers the solver's residual."""


def output_perturbation(
    risk: EmpiricalRisk,
    *,
    epsilon: float,
    delta: float | None = None,
    lam: float | None = None,
    domain: Domain | None = None,
    diameter: float | None = None,
    goal: Goal = "empirical",
    adjacency: str = REPLACE_ONE,
    beta: float = DEFAULT_BETA,
    source: NoiseSource | None = None,
) -> PrivateMinimiser:
    """The minimiser of F_S(x) + lam/2 |x|^2 over ``domain``, with noise, at the l_inf-nearest domain point.

    Guarantee: (epsilon, delta)-DP. Adjacency: replace-one, or add-or-remove-one in the form that keeps the
    public n (a removed example leaves one without loss behind). Sensitivity: ``l2_sensitivity`` of the exact
    minimiser, ``l1_sensitivity`` with delta = 0. Event: Gaussian(sigma_AG) or Laplace(1/epsilon). Released:
    the projected minimiser.
    Proof: the minimiser of a lam-strongly convex function moves by at most the change of its gradient over
    lam. What is perturbed lies, by certificate, within 0.005 of the sensitivity of the exact minimiser on
    either data set, so noise for 1.01 times the sensitivity covers it; the projection is post-processing.

    Parameters
    ----------
    risk : the losses, by functions or as a linear model, with the regularity they promise.
    epsilon, delta : the guarantee; ``delta=0`` requests pure DP, ``None`` means 1 / (10 n).
    lam : lambda; from the theorem unless given, which then needs ``diameter`` or a bounded domain. Refused below a
        floor of public numbers, under which some data sets could not be solved precisely enough.
    domain : Unconstrained (the default), Box, Ball or Simplex; within ``risk.regularity.radius``, where that is
        finite (the squared loss).
    diameter : D, a public bound on the norm of a good solution; that of the domain unless given.
    goal : ``"empirical"`` or ``"population"`` risk, for the theorem's lambda.
    beta : the theorem's: how often ``error_bound``, on the excess empirical risk, may fail.
    """
    epsilon, delta = check_epsilon(epsilon), check_pure_or_delta(delta, risk.n)
    check_adjacency(adjacency)
    risk.verify(pure=delta == 0.0)
    beta = check_delta(beta, "beta")
    domain = Unconstrained() if domain is None else domain
    check_within(domain, risk)
    source = NoiseSource() if source is None else source
    reach = largest_norm(domain, risk.dimension) if diameter is None else check_positive("diameter", diameter)
    if lam is None:
        lam = _theorem_lambda(risk, epsilon, delta, diameter=reach, goal=goal, beta=beta)
    lam = check_lambda(lam)
    sensitivity, noise = _calibrate(risk, lam, domain, epsilon, delta, adjacency)
    solution = _solve(risk, lam, domain, adjacency, pure=delta == 0.0)
    noisy = noise.add(solution.x, source.noise)
    return PrivateMinimiser(
        x=project_linf(noisy, domain),
        statement=minimiser_statement(risk, epsilon, delta, adjacency, source),
        sensitivity=sensitivity,
        noise_scale=noise.scale,
        lam=lam,
        error_bound=_error_bound(risk, lam, domain, reach, noise, sensitivity, beta),
    )


def _theorem_lambda(
    risk: EmpiricalRisk, epsilon: float, delta: float, *, diameter: float, goal: Goal, beta: float
) -> float:
    return theorem_lambda(
        risk.regularity,
        n=risk.n,
        dimension=risk.dimension,
        epsilon=epsilon,
        delta=delta,
        diameter=diameter,
        goal=goal,
        beta=beta,
    )


def l2_sensitivity(risk: EmpiricalRisk, lam: float, adjacency: str = REPLACE_ONE) -> float:
    """2L / (lam n): how far one example moves the exact minimiser; half of it under add-or-remove-one."""
    return changed_terms(adjacency) * risk.regularity.lipschitz / (lam * risk.n)


def l1_sensitivity(
    risk: EmpiricalRisk, lam: float, adjacency: str = REPLACE_ONE, *, constrained: bool = False
) -> float:
    """The same in l1, for pure DP.

    Proof: without constraints ``lam (x - x') = F_S'(x') - F_S(x)`` in gradients. The n - 1 common examples
    move theirs by at most ``smoothness_l1 |x - x'|_2`` each, the changed one by its own l1 norms. For
    s-sparse, H-smooth losses: (2 L sqrt(s) / (lam n)) (sqrt(2) (H / lam) (n - 1)/n + 1). Always sqrt(d) times
    the l2 sensitivity.
    """
    regularity, n = risk.regularity, risk.n
    l2 = l2_sensitivity(risk, lam, adjacency)
    through_l2 = math.sqrt(risk.dimension) * l2
    if constrained or regularity.smoothness_l1 is None:
        return through_l2
    common = (n - 1) * regularity.smoothness_l1 * l2
    changed = changed_terms(adjacency) * regularity.lipschitz_l1
    return min(through_l2, (common + changed) / (lam * n))


def check_within(domain: Domain, risk: EmpiricalRisk) -> None:
    """Refuse a domain that is larger than the ball on which the risk promises its regularity."""
    radius, reach = risk.regularity.radius, largest_norm(domain, risk.dimension)
    if reach > radius * (1 + 1e-12):
        raise ValueError(
            f"domain must lie within the ball of radius {radius:g} on which the loss keeps its Lipschitz bound, but "
            f"it reaches {reach:g}: give domain=Ball({radius:g}), or a loss with bounded slopes"
        )


def _sensitivity(risk: EmpiricalRisk, lam: float, domain: Domain, adjacency: str, *, pure: bool) -> float:
    if pure:
        return l1_sensitivity(risk, lam, adjacency, constrained=not isinstance(domain, Unconstrained))
    return l2_sensitivity(risk, lam, adjacency)


def _calibrate(
    risk: EmpiricalRisk, lam: float, domain: Domain, epsilon: float, delta: float, adjacency: str
) -> tuple[float, Noise]:
    sensitivity = _sensitivity(risk, lam, domain, adjacency, pure=delta == 0.0)
    if delta == 0.0:
        return sensitivity, LaplaceNoise.calibrated((1 + SLACK) * sensitivity, epsilon)
    return sensitivity, GaussianNoise.calibrated((1 + SLACK) * sensitivity, epsilon, delta)


def _solve(risk: EmpiricalRisk, lam: float, domain: Domain, adjacency: str, *, pure: bool) -> Minimiser:
    """A point certified to lie within SLACK / 2 of the sensitivity of the exact minimiser.

    A gradient of norm r bounds the distance by r / lam in l2 and by sqrt(d) r / lam in l1. Half of the
    tolerance is for the solver, the rest covers the rounding of its gradients. All of it is public.
    """
    norm_ratio = math.sqrt(risk.dimension) if pure else 1.0

    def tolerance(candidate: float) -> float:
        sensitivity = _sensitivity(risk, candidate, domain, adjacency, pure=pure)
        return candidate * SLACK / 2 * sensitivity / norm_ratio

    check_solvable(risk, lam, domain, tolerance)
    return minimise(Objective(risk, lam), domain, tolerance=tolerance(lam) / 2)


def _error_bound(
    risk: EmpiricalRisk,
    lam: float,
    domain: Domain,
    reach: float,
    noise: Noise,
    sensitivity: float,
    beta: float,
) -> float | None:
    """|F gradient|_1 |x - x*|_inf + lam D^2 / 2: inequalities (4), (5) of the paper with constants."""
    if not math.isfinite(reach):
        return None
    moves = 1 if isinstance(domain, Unconstrained) else 2
    moved = moves * (noise.largest(risk.dimension, beta) + SLACK / 2 * sensitivity)
    return risk.regularity.lipschitz_l1 * moved + lam * reach**2 / 2
