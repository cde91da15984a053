import math
import sys

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit
from support.spies import spy

from sparsedp.accounting import analytic_gaussian_epsilon, analytic_gaussian_sigma
from sparsedp.audit.distinguishing import exact_epsilon, hockey_stick
from sparsedp.convex import LinearRisk, LogisticLoss, SmoothedHingeLoss, SoftmaxLoss, SquaredLoss
from sparsedp.convex import noise as noise_module
from sparsedp.convex.clip import clip_rows
from sparsedp.convex.erm.objective_perturbation import (
    gradient_change,
    objective_noise,
    objective_perturbation,
)
from sparsedp.convex.noise import GaussianNoise, LaplaceNoise
from sparsedp.randomness import NoiseSource

objective_module = sys.modules["sparsedp.convex.erm.objective_perturbation"]
BOTH = pytest.mark.parametrize("pure", [False, True])
ADJACENCIES = pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])


def risk_of(rows, targets, loss):
    rows = np.asarray(rows, dtype=float).reshape(len(targets), -1)
    return LinearRisk(rows, np.asarray(targets, dtype=float), loss, 1.0, 1.0)


@BOTH
@ADJACENCIES
@pytest.mark.parametrize("factor", [0.25, 8.0])
@pytest.mark.parametrize("loss", [LogisticLoss(), SoftmaxLoss(3)], ids=repr)
def test_rows_of_any_length_get_the_noise_of_rows_of_length_one(loss, factor, adjacency, pure):
    """Rows c times as long, parameters 1/c of theirs and lambda c^2 times as large are the same problem."""
    risk = risk_of([1.0] * 50, [1.0] * 50, loss)
    longer = LinearRisk(risk.rows * factor, risk.targets, loss, factor, factor)
    budget = (1.0, 0.0 if pure else 1e-6, adjacency)
    expected = factor * objective_noise(risk, 0.02, *budget).scale
    assert objective_noise(longer, factor**2 * 0.02, *budget).scale == pytest.approx(expected)


def densities(risk, lam, noise, axis):
    """The exact law of the minimiser with one feature on a grid: noise density times Jacobian determinant."""
    n, k, loss = risk.n, risk.loss.outputs, risk.loss
    grid = np.stack(np.meshgrid(*[axis] * k, indexing="ij"), axis=-1).reshape(-1, k)
    gradient, hessian = n * lam * grid, np.tile(n * lam * np.eye(k), (len(grid), 1, 1))
    for row, target in zip(risk.rows[:, 0], risk.targets, strict=True):
        margins, targets = row * grid, np.full(len(grid), target)
        gradient = gradient + row * loss.slopes(margins, targets)
        bends = [loss.bend(margins, targets, np.tile(unit, (len(grid), 1))) for unit in np.eye(k)]
        hessian = hessian + row**2 * np.stack(bends, axis=-1)
    law = (
        stats.norm(scale=noise.scale)
        if isinstance(noise, GaussianNoise)
        else stats.laplace(scale=noise.scale)
    )
    log_density = law.logpdf(gradient).sum(axis=1) + np.linalg.slogdet(hessian)[1]
    weights = np.exp(log_density - log_density.max())
    return weights / weights.sum()


def pairs(adjacency):
    """Neighbours with one feature: a label turned, a row turned, a row made shorter; or a row emptied."""
    rows, targets = np.array([1.0, 0.6, -0.3]), np.array([1.0, -1.0, 1.0])
    if adjacency == "replace-one":
        changes = [(1.0, -1.0), (-1.0, 1.0), (-0.5, 1.0)]
    else:
        changes = [(0.0, 1.0)]
    for row, target in changes:
        other_rows, other_targets = rows.copy(), targets.copy()
        other_rows[0], other_targets[0] = row, target
        yield (rows, targets), (other_rows, other_targets)


def worst_delta(loss, lam, noise, epsilon, adjacency, pure):
    """The largest delta (or, for pure DP, epsilon) over the pairs, from exact laws, both orders."""
    found = 0.0
    reach = 12 * noise.scale / (3 * lam)
    axis = np.linspace(-reach, reach, 1201)
    for first, second in pairs(adjacency):
        laws = [densities(risk_of(*data, loss), lam, noise, axis) for data in (first, second)]
        if pure:
            keep = np.minimum(*laws) > 1e-30
            p, q = (law[keep] / law[keep].sum() for law in laws)
            found = max(found, exact_epsilon(p, q))
        else:
            found = max(found, hockey_stick(*laws, epsilon), hockey_stick(*laws[::-1], epsilon))
    return found


@BOTH
@ADJACENCIES
@pytest.mark.parametrize("loss", [LogisticLoss(1.0), LogisticLoss(0.5), SmoothedHingeLoss(0.5)], ids=repr)
def test_exact_privacy_of_the_exact_minimiser(loss, adjacency, pure):
    """No sampling: the law of the minimiser is known, so delta at epsilon is computed and compared."""
    epsilon, delta, lam = 1.0, 0.0 if pure else 0.01, 0.8
    noise = objective_noise(risk_of(np.ones(3), np.ones(3), loss), lam, epsilon, delta, adjacency)
    worst = worst_delta(loss, lam, noise, epsilon, adjacency, pure)
    if pure:
        assert 0.3 * epsilon < worst <= epsilon * (1 + 1e-3)
    else:
        assert worst <= delta * (1 + 1e-3)


@BOTH
def test_positive_controls(pure):
    """The same computation catches noise for one example taken out, and a Hessian that is not paid for."""
    epsilon, delta = 1.0, 0.0 if pure else 0.01
    limit = epsilon if pure else delta
    loss = SmoothedHingeLoss(0.5)
    half = objective_noise(risk_of(np.ones(3), np.ones(3), loss), 0.8, epsilon, delta, "add-or-remove-one")
    assert worst_delta(loss, 0.8, half, epsilon, "replace-one", pure) > 1.2 * limit
    sharp = SmoothedHingeLoss(
        0.02
    )  # curved much: without the determinants' share of epsilon it is not private
    change = gradient_change(risk_of(np.ones(3), np.ones(3), sharp), "add-or-remove-one", pure=pure)
    free = (
        LaplaceNoise(change / epsilon)
        if pure
        else GaussianNoise(change * analytic_gaussian_sigma(epsilon, delta))
    )
    assert worst_delta(sharp, 0.2, free, epsilon, "add-or-remove-one", pure) > 1.2 * limit


def test_exact_privacy_of_a_joint_loss():
    """Two margins, so two parameters: the law on a grid of the plane. A quarter of the noise is caught."""
    loss, lam, epsilon, delta = SoftmaxLoss(2), 1.0, 1.5, 0.05
    first = risk_of([1.0, 0.5], [0, 1], loss)
    second = risk_of([1.0, 0.5], [1, 1], loss)
    noise = objective_noise(first, lam, epsilon, delta)
    for scale, private in ((1.0, True), (0.25, False)):
        scaled = GaussianNoise(scale * noise.std)
        axis = np.linspace(-9, 9, 241) * scaled.std / (2 * lam)
        laws = [densities(risk, lam, scaled, axis) for risk in (first, second)]
        worst = max(hockey_stick(*laws, epsilon), hockey_stick(*laws[::-1], epsilon))
        assert (worst <= delta) == private


@BOTH
def test_what_is_released_follows_that_law(pure):
    loss, lam, epsilon, delta = LogisticLoss(0.5), 0.8, 2.0, 0.0 if pure else 0.01
    risk = risk_of([1.0, 0.6, -0.3], [1.0, -1.0, 1.0], loss)
    noise = objective_noise(risk, lam, 0.99 * epsilon, 0.99 * delta)
    reach = 14 * noise.scale / (3 * lam)
    axis = np.linspace(-reach, reach, 6001)
    cdf = np.cumsum(densities(risk, lam, noise, axis))
    source = NoiseSource(seed=1)
    drawn = [
        objective_perturbation(risk, epsilon=epsilon, delta=delta, lam=lam, source=source).x[0]
        for _ in range(800)
    ]
    assert stats.kstest(drawn, lambda x: np.interp(x, axis, cdf)).pvalue > 1e-9
    assert stats.kstest(1.8 * np.array(drawn), lambda x: np.interp(x, axis, cdf)).pvalue < 1e-9


def test_the_noise_is_the_specified_one():
    risk = risk_of(np.ones(50), np.ones(50), LogisticLoss(1.0))
    lam = 0.5
    cost = math.log1p(0.25 / (50 * lam))
    assert objective_noise(risk, lam, 1.0, 0.0).scale == pytest.approx(2.0 / (1.0 - cost))
    assert objective_noise(risk, lam, 1.0, 1e-5).scale == pytest.approx(
        2.0 * analytic_gaussian_sigma(1.0 - cost, 1e-5 / 3)
    )
    assert objective_noise(risk, lam, 1.0, 1e-5, "add-or-remove-one").scale == pytest.approx(
        analytic_gaussian_sigma(1.0 - cost, 1e-5)
    )
    joint = LinearRisk(np.ones((50, 1)), np.zeros(50), SoftmaxLoss(4), 1.0, 1.0)
    cost = 3 * math.log1p(0.75 / (3 * 50 * lam))
    assert objective_noise(joint, lam, 1.0, 1e-5).scale == pytest.approx(
        2 * math.sqrt(2) * analytic_gaussian_sigma(1.0 - cost, 1e-5 / 15)
    )


def test_it_beats_output_perturbation_where_data_curve_the_objective():
    from sparsedp.convex import output_perturbation

    generator = np.random.default_rng(0)
    rows = clip_rows(generator.standard_normal((4000, 5)), l2=1.0)
    targets = np.where(generator.random(4000) < expit(4 * rows[:, 0]), 1.0, -1.0)
    risk = LinearRisk(rows, targets, LogisticLoss(1.0), 1.0, math.sqrt(5))
    best = min(risk.value_and_gradient(np.eye(5)[0] * c)[0] for c in np.linspace(0, 8, 81))
    source = NoiseSource(seed=2)

    def excess(mechanism, **arguments):
        return np.mean(
            [
                risk.value_and_gradient(mechanism(risk, epsilon=0.5, source=source, **arguments).x)[0] - best
                for _ in range(10)
            ]
        )

    assert excess(objective_perturbation) < 0.5 * excess(output_perturbation, diameter=5.0)


def test_refusals():
    risk = risk_of(np.ones(50), np.ones(50), LogisticLoss(1.0))
    with pytest.raises(ValueError, match="lam must be above"):
        objective_perturbation(risk, epsilon=0.1, lam=1e-4)
    with pytest.raises(ValueError, match="lam must be positive, got 0"):
        objective_perturbation(risk, epsilon=0.1, lam=0)
    with pytest.raises(ValueError, match="bounded gradients everywhere"):
        objective_perturbation(risk_of(np.ones(50), np.ones(50), SquaredLoss(2.0, 1.0)), epsilon=1.0)
    with pytest.raises(ValueError, match="adjacency must be"):
        objective_perturbation(risk, epsilon=1.0, adjacency="both")
    statement = objective_perturbation(risk, epsilon=1.0, adjacency="add-or-remove-one").statement
    assert statement.private
    assert statement.notes


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("delta", [1e-4, 0.0])
@pytest.mark.parametrize("loss", [LogisticLoss(1.0), SoftmaxLoss(3)], ids=repr)
def test_the_noises_that_are_drawn_are_those_that_were_accounted_for(monkeypatch, adjacency, delta, loss):
    """The noise in the objective pays for 99% of the budget, less the determinants; the one on its minimiser for 1%."""
    n, epsilon, lam = 400, 0.9, 0.05
    calls = spy(monkeypatch, noise_module, "gaussian" if delta else "laplace")
    solved = spy(monkeypatch, objective_module, "minimise")
    targets = np.arange(n) % loss.outputs if loss.outputs > 1 else np.where(np.arange(n) % 2, 1.0, -1.0)
    rows = clip_rows(np.random.default_rng(0).standard_normal((n, 4)), l2=1.0)
    risk = LinearRisk(rows, targets, loss, 1.0, 2.0)
    result = objective_perturbation(
        risk, epsilon=epsilon, delta=delta, lam=lam, adjacency=adjacency, source=NoiseSource(1)
    )
    within, hiding = (call["std" if delta else "scale"] for call in calls)
    (solve,) = solved
    assert not calls[0]["values"].any()
    assert within == result.noise_scale
    # What one example does: a slope of norm sqrt(2) (1 for the logistic) times a row, once or twice.
    terms = 2 if adjacency == "replace-one" else 1
    slope = {True: math.sqrt(2) if delta else 2.0, False: 1.0}[loss.outputs > 1]
    change = terms * slope * (1.0 if delta else 2.0)
    rank, trace = (2, 2 / 3) if loss.outputs > 1 else (1, 0.25)
    determinants = rank * math.log1p(trace / (rank * n * lam))
    corners = (3 if loss.outputs > 1 else 2) ** terms - 1
    rest = 0.99 * epsilon - determinants
    # Solved to half of what is hidden, and twice that apart on neighbours.
    distance = 4 * solve["tolerance"] / lam * (1.0 if delta else math.sqrt(risk.dimension))
    if delta:
        assert analytic_gaussian_epsilon(0.99 * delta / corners, change / within) == pytest.approx(
            rest, rel=1e-6
        )
        assert analytic_gaussian_epsilon(0.01 * delta, distance / hiding) == pytest.approx(
            0.01 * epsilon, rel=1e-4
        )
    else:
        assert change / within == pytest.approx(rest, rel=1e-9)
        assert distance / hiding == pytest.approx(0.01 * epsilon, rel=1e-9)
    assert np.array_equal(solve["objective"].linear, calls[0]["returned"] / n)
    assert np.array_equal(result.x, calls[1]["returned"])
    assert (result.statement.epsilon, result.statement.delta) == (epsilon, delta)
