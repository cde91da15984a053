import math

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize as scipy_minimize

from sparsedp.convex import (
    FunctionRisk,
    LinearRisk,
    LogisticLoss,
    Regularity,
    SmoothedHingeLoss,
    SoftmaxLoss,
    objective_perturbation,
    output_perturbation,
)
from sparsedp.convex.clip import clip_rows
from sparsedp.convex.erm import solver
from sparsedp.convex.erm.domains import Ball, Box, Simplex, Unconstrained, euclidean_nearest
from sparsedp.convex.erm.solver import NotSolved, Objective, check_solvable, minimise


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


DOMAINS = [Unconstrained(), Box(-0.3, 0.4), Ball(0.5), Simplex(1.0)]


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
@pytest.mark.parametrize("lam", [1.0, 1e-3])
def test_certificate_against_known_minimisers(domain, lam):
    """Within residual / lam of the exact minimiser: known in closed form, or by a much tighter solve."""
    generator = np.random.default_rng(1)
    center, scales = generator.standard_normal(8), generator.uniform(0.1, 2.0, 8)
    objective = Objective(quadratic(center, scales), lam)
    tight = minimise(objective, domain, tolerance=1e-12)
    if isinstance(domain, Unconstrained | Box):
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
        solution = minimise(Objective(risk, lam), Unconstrained(), tolerance=1e-12)
        assert np.linalg.norm(risk.value_and_gradient(solution.x)[1] + lam * solution.x) <= 1e-12


def test_linear_term():
    linear = np.array([0.1, 0.0, -0.2, 0.0, 0.0, 0.3])
    risk = linear_risk()
    solution = minimise(Objective(risk, 0.1, linear), Unconstrained(), tolerance=1e-10)
    assert np.allclose(risk.value_and_gradient(solution.x)[1] + 0.1 * solution.x + linear, 0.0, atol=1e-10)


def test_a_promise_that_is_broken_is_an_error_and_not_a_result(monkeypatch):
    """A corner where the risk promised to be smooth: no gradient near it is small."""
    monkeypatch.setattr(solver, "_GRADIENT_STEPS", 500)
    corner = FunctionRisk(lambda x: (0.0, np.sign(x - 0.3)), 5, 2, Regularity(2.0, 2.0, 1.0, 1.0))
    with pytest.raises(NotSolved, match="privacy needs"):
        minimise(Objective(corner, 1e-2), Unconstrained(), tolerance=1e-6)


ROWS = {
    "empty": lambda n, d: np.zeros((n, d)),
    "random": lambda n, d: np.random.default_rng(0).standard_normal((n, d)),
    "alike": lambda n, d: np.ones((n, d)),
    "scales": lambda n, d: np.random.default_rng(1).standard_normal((n, d)) * 10.0 ** -np.arange(d),
    "tiny": lambda n, d: 1e-5 * np.random.default_rng(2).standard_normal((n, d)),
    "line": lambda n, d: np.outer(np.linspace(-1, 1, n), np.ones(d)),
}


def hard_risks(loss, n=60, d=5):
    """Data that separate, contradict each other or say nothing, in rows of every condition."""
    for make in ROWS.values():
        rows = clip_rows(make(n, d), l2=1.0)
        side = rows[:, 0] >= 0
        for targets in (side, np.arange(n) % 2 == 0, np.ones(n, dtype=bool)):
            numbered = targets.astype(float) if loss.outputs > 1 else np.where(targets, 1.0, -1.0)
            yield LinearRisk(rows, numbered, loss, 1.0, math.sqrt(d))


def floor_of(risk, tolerance):
    """The least lam, but for a factor of two, that is let through."""
    lam = 1e-13
    while True:
        try:
            check_solvable(risk, lam, Unconstrained(), tolerance)
        except ValueError:
            lam *= 2
        else:
            return lam


LOSSES = [
    LogisticLoss(0.5),
    LogisticLoss(1.0),
    SmoothedHingeLoss(0.5),
    SmoothedHingeLoss(0.02),
    SoftmaxLoss(3),
]


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_at_the_floor_every_data_set_is_solved(loss):
    def tolerance(lam):
        return 0.01 * loss.bounds.slope_l2 / 60

    floor = floor_of(next(hard_risks(loss)), tolerance)
    for risk in hard_risks(loss):
        solution = minimise(Objective(risk, floor), Unconstrained(), tolerance=tolerance(floor) / 2)
        assert solution.residual <= tolerance(floor) / 2


@pytest.mark.parametrize("domain", [Unconstrained(), Ball(0.5), Simplex(1.0)], ids=repr)
def test_accelerated_gradients_need_no_more_steps_than_promised(monkeypatch, domain):
    """The promise behind the floor, without Newton's method: it may only be faster."""
    lam, tolerance = 1e-4, 1e-6
    for risk in hard_risks(LogisticLoss(1.0)):
        promised = math.ceil(solver._PublicProblem(risk, lam, domain, 0.0).steps(tolerance))
        monkeypatch.setattr(solver, "_GRADIENT_STEPS", promised)
        found = solver._accelerated(Objective(risk, lam), domain, np.zeros(risk.dimension), tolerance)
        assert found.residual <= tolerance


def test_what_is_refused_does_not_depend_on_data():
    """Under the floor, data that are easy to solve are refused like data that are not, and before they are seen.

    The old form solved the easy ones and raised NotSolved at the others: whoever sees the failure knows which.
    """
    messages = set()
    for risk in hard_risks(LogisticLoss()):
        with pytest.raises(ValueError, match="lam must be larger") as refusal:
            output_perturbation(risk, epsilon=1.0, lam=1e-12)
        messages.add(str(refusal.value))
        with pytest.raises(ValueError, match="lam must be") as refusal:
            objective_perturbation(risk, epsilon=1e6, delta=1e-5, lam=1e-12)
        messages.add(str(refusal.value))
    assert len(messages) == 1

    def seen(x):
        raise AssertionError("the data were looked at")

    blind = FunctionRisk(seen, 100, 5, Regularity(1.0, 1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match=r"lam must be larger, about .*e-06, got 1e-09"):
        output_perturbation(blind, epsilon=1.0, lam=1e-9)
    with pytest.raises(ValueError, match="regularity must state a smoothness"):
        output_perturbation(FunctionRisk(seen, 100, 5, Regularity(1.0, 1.0)), epsilon=1.0, lam=1.0)
    with pytest.raises(ValueError, match="too large for float64"):
        output_perturbation(
            FunctionRisk(seen, 10**12, 5, Regularity(1.0, 1.0, 1.0, 1.0)), epsilon=1.0, lam=1.0
        )


def test_old_failures_depended_on_data(monkeypatch):
    """The control: Newton's method alone, as it was, under the floor."""
    monkeypatch.setattr(solver, "_GRADIENT_STEPS", 0)
    outcomes = set()
    for risk in hard_risks(LogisticLoss()):
        try:
            minimise(Objective(risk, 1e-15), Unconstrained(), tolerance=0.01 * 0.5 / 60)
            outcomes.add("solved")
        except NotSolved:
            outcomes.add("failed")
    assert outcomes == {"solved", "failed"}


def test_rounding_stays_within_its_bound():
    """A gradient in float64 beside one in long double, on equal entries, whose sums round the same way each time."""
    n, d = 3000, 400
    rows = np.full((n, d), 1 / math.sqrt(d) - 1e-9)
    risk = LinearRisk(
        sparse.csr_array(rows), np.where(np.arange(n) % 3 == 0, -1.0, 1.0), LogisticLoss(1.0), 1.0, 20.0
    )
    lam = 1e-3
    problem = solver._PublicProblem(risk, lam, Unconstrained(), 0.0)
    for size in (0.1, 1.0 / lam):
        x = np.full(d, size / math.sqrt(d))
        wide = rows.astype(np.longdouble)
        margins = wide @ x.astype(np.longdouble)
        slopes = -risk.targets / (1 + np.exp(risk.targets * margins))
        exact = wide.T @ slopes / n
        assert np.linalg.norm(risk.value_and_gradient(x)[1] - exact) <= problem.rounding()
