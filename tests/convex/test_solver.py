import math

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize

from sparsedp.convex import FunctionRisk, LinearRisk, LogisticLoss, Regularity, SoftmaxLoss
from sparsedp.convex.clip import clip_rows
from sparsedp.convex.domains import Ball, Box, Everywhere, Simplex, euclidean_nearest
from sparsedp.convex.solver import NotSolved, Objective, minimise


def linear_risk(loss=None, n=200, d=6, seed=0):
    loss = LogisticLoss() if loss is None else loss
    generator = np.random.default_rng(seed)
    rows = clip_rows(generator.standard_normal((n, d)), l2=1.0)
    k = loss.outputs
    targets = (
        generator.integers(0, k, n).astype(float)
        if k > 1
        else np.sign(rows[:, 0] + generator.normal(0, 0.3, n))
    )
    return LinearRisk(rows, targets, loss, 1.0, math.sqrt(d))


def quadratic(center, scales):
    """sum of scales (x - center)^2 / 2: the minimiser is known."""
    regularity = Regularity(10.0, 10.0, float(scales.max()), float(scales.max()))
    return FunctionRisk(
        lambda x: (0.5 * float(scales @ (x - center) ** 2), scales * (x - center)),
        10,
        center.size,
        regularity,
    )


DOMAINS = [Everywhere(), Box(-0.3, 0.4), Ball(0.5), Simplex(1.0)]


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("lam", [1.0, 1e-3])
def test_certificate_against_known_minimisers(domain, lam):
    """Within residual / lam of the exact minimiser: known in closed form, or by a much tighter solve."""
    generator = np.random.default_rng(1)
    center, scales = generator.standard_normal(8), generator.uniform(0.1, 2.0, 8)
    objective = Objective(quadratic(center, scales), lam)
    tight = minimise(objective, domain, tolerance=1e-12)
    if isinstance(domain, Everywhere | Box):
        exact = euclidean_nearest(domain, scales * center / (scales + lam))  # a separable problem
        assert np.allclose(tight.x, exact, atol=1e-9)
    for tolerance in (1e-2, 1e-5):
        loose = minimise(objective, domain, tolerance=tolerance)
        assert loose.residual <= tolerance
        assert np.linalg.norm(loose.x - tight.x) <= loose.residual / lam + 1e-9
        assert np.allclose(euclidean_nearest(domain, loose.x), loose.x)


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_linear_models_against_scipy(domain):
    risk = linear_risk()
    objective = Objective(risk, 0.01)
    solution = minimise(objective, domain, tolerance=1e-9)
    if isinstance(domain, Simplex):
        extra = {"constraints": {"type": "eq", "fun": lambda x: x.sum() - 1.0}, "bounds": [(0, None)] * 6}
    elif isinstance(domain, Ball):
        extra = {"constraints": {"type": "ineq", "fun": lambda x: 0.25 - x @ x}}
    else:
        extra = {"bounds": [(-0.3, 0.4)] * 6} if isinstance(domain, Box) else {}

    def value(x):
        return risk.value_and_gradient(x)[0] + 0.005 * float(x @ x)

    reference = scipy_minimize(value, solution.x * 0 + 0.1, method="SLSQP", options={"ftol": 1e-14}, **extra)
    assert np.allclose(solution.x, reference.x, atol=1e-4)
    assert value(solution.x) <= value(reference.x) + 1e-9


@pytest.mark.parametrize("loss", [LogisticLoss(1.0), LogisticLoss(0.5), SoftmaxLoss(3)], ids=repr)
def test_small_tolerances_are_reached(loss):
    """What privacy asks for at n = 1e6: gradients of 1e-8 and less, far below where values stop moving."""
    risk = linear_risk(loss, n=2000)
    for lam in (1e-1, 1e-4):
        solution = minimise(Objective(risk, lam), Everywhere(), tolerance=1e-12)
        assert np.linalg.norm(risk.value_and_gradient(solution.x)[1] + lam * solution.x) <= 1e-12


def test_linear_term():
    linear = np.array([0.1, 0.0, -0.2, 0.0, 0.0, 0.3])
    risk = linear_risk()
    solution = minimise(Objective(risk, 0.1, linear), Everywhere(), tolerance=1e-10)
    assert np.allclose(risk.value_and_gradient(solution.x)[1] + 0.1 * solution.x + linear, 0.0, atol=1e-10)


def test_what_cannot_be_solved_is_an_error_and_not_a_result():
    with pytest.raises(NotSolved, match="privacy needs"):
        minimise(Objective(linear_risk(), 1e-3), Everywhere(), tolerance=1e-30)
