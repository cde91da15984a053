import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from support.spies import spy

from sparsedp.accounting import GaussianDpEvent, analytic_gaussian_sigma, epsilon_of
from sparsedp.audit.distinguishing import audit, repeated
from sparsedp.convex import (
    Ball,
    Box,
    FunctionRisk,
    LinearRisk,
    LogisticLoss,
    Regularity,
    Simplex,
    SmoothedHingeLoss,
    SoftmaxLoss,
    SquaredLoss,
    Unconstrained,
    output_perturbation,
    theorem_lambda,
)
from sparsedp.convex import noise as noise_module
from sparsedp.convex.clip import clip_rows
from sparsedp.convex.erm.output_perturbation import SLACK, l1_sensitivity, l2_sensitivity
from sparsedp.convex.erm.solver import Objective, minimise
from sparsedp.convex.noise import GaussianNoise
from sparsedp.randomness import NoiseSource

N = 20
output_module = sys.modules["sparsedp.convex.erm.output_perturbation"]


def mean_risk(rows):
    """f(x, z) = -<x, z> with |z| <= 1: 1-Lipschitz and linear, so that the sensitivity is attained."""
    mean = rows.mean(axis=0)
    regularity = Regularity.sparse(1.0, rows.shape[1], smoothness=1e-9)
    return FunctionRisk(lambda x: (-float(mean @ x), -mean), rows.shape[0], rows.shape[1], regularity)


def logistic_risk(rows, targets, loss=None):
    rows = clip_rows(np.asarray(rows, dtype=float), l2=1.0)
    loss = LogisticLoss(1.0) if loss is None else loss
    return LinearRisk(rows, np.asarray(targets, dtype=float), loss, 1.0, math.sqrt(rows.shape[1]))


def some_risk(n=300, d=4, loss=None, seed=0):
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((n, d))
    k = 1 if loss is None else loss.outputs
    targets = (
        generator.integers(0, k, n) if k > 1 else np.sign(rows[:, 0] + 0.3 * generator.standard_normal(n))
    )
    return logistic_risk(rows, targets, loss)


def exact(risk, lam):
    return minimise(Objective(risk, lam), Unconstrained(), tolerance=1e-13).x


@pytest.mark.parametrize(
    "loss", [LogisticLoss(1.0), LogisticLoss(0.5), SmoothedHingeLoss(), SoftmaxLoss(3)], ids=repr
)
@pytest.mark.parametrize("lam", [1.0, 0.03])
def test_sensitivity_of_the_exact_minimiser_on_adversarial_pairs(loss, lam):
    """One example replaced by its worst opposite: the same row with another label, at every norm and label."""
    generator = np.random.default_rng(0)
    worst = {1: 0.0, 2: 0.0}
    k = loss.outputs
    for trial in range(25):
        rows = generator.standard_normal((N, 3)) * generator.choice([0.1, 10.0])
        targets = generator.integers(0, k, N) if k > 1 else generator.choice([-1.0, 1.0], N)
        if trial % 2:
            targets[:] = targets[0]  # all on one side: slopes are near their largest when one disagrees
        other_rows, other_targets = rows.copy(), targets.copy()
        other_targets[0] = (targets[0] + 1) % k if k > 1 else -targets[0]
        if trial % 3:
            other_rows[0] = -rows[0]
        pair = [logistic_risk(rows, targets, loss), logistic_risk(other_rows, other_targets, loss)]
        moved = exact(pair[0], lam) - exact(pair[1], lam)
        for order, claim in ((1, l1_sensitivity(pair[0], lam)), (2, l2_sensitivity(pair[0], lam))):
            assert np.linalg.norm(moved, order) <= claim * (1 + 1e-9)
            worst[order] = max(worst[order], np.linalg.norm(moved, order) / claim)
    assert worst[2] > 0.1  # the bound is of the right order; linear losses attain it, see below


def moved_by_one_example(pair, lam, domain=None):
    """How far the minimiser moves, in units of the claimed sensitivity."""
    domain = Unconstrained() if domain is None else domain
    points = [minimise(Objective(risk, lam), domain, tolerance=1e-11).x for risk in pair]
    return np.linalg.norm(points[0] - points[1]) / l2_sensitivity(pair[0], lam)


def squared_pair(margin_bound, n=20_000, short=0.03):
    """Short rows along four axes draw the weights far out; one row of full length between them comes or goes."""
    rows = np.eye(4)[np.arange(n) % 4] * short
    other = rows.copy()
    other[0] = 0.5
    targets = np.ones(n)
    targets[0] = -1.0
    return [LinearRisk(each, targets, SquaredLoss(margin_bound, 1.0), 1.0, 2.0) for each in (rows, other)]


def test_a_squared_loss_without_a_domain_is_refused():
    """Margins that pass their bound make slopes that do: without a domain, farther than the claim; with one, not."""
    lam = 0.03**2 / 4
    assert moved_by_one_example(squared_pair(0.1), lam) > 7.0
    for risk in squared_pair(0.1):
        for domain in (None, Unconstrained(), Ball(10.0), Box(-1.0, 1.0)):
            with pytest.raises(ValueError, match=r"domain must lie within the ball of radius 0\.1"):
                output_perturbation(risk, epsilon=1.0, lam=lam, domain=domain)
    for radius in (0.1, 2.0, 40.0):
        pair = squared_pair(radius)
        assert moved_by_one_example(pair, lam, Ball(radius)) <= 1.0
        output_perturbation(pair[0], epsilon=1.0, lam=lam, domain=Ball(radius))


def test_functions_that_are_lipschitz_in_a_ball_only_need_a_domain():
    risk = FunctionRisk(lambda x: (0.5 * float(x @ x), x), N, 3, Regularity(2.0, 4.0, 1.0, 2.0, radius=2.0))
    with pytest.raises(ValueError, match="domain must lie within the ball of radius 2"):
        output_perturbation(risk, epsilon=1.0, lam=1.0)
    assert output_perturbation(risk, epsilon=1.0, lam=1.0, domain=Ball(2.0)).x.shape == (3,)


def test_one_target_that_the_loss_does_not_know_would_move_the_minimiser_too_far():
    """The control: a target of 30 among N, put past the check. Its slope is 30 times what the loss promises."""
    rows = np.eye(4)[np.arange(N) % 4] * 0.5
    rows[0] = [1.0, 0.0, 0.0, 0.0]
    honest = logistic_risk(rows, np.ones(N))
    pair = [replace(honest) for _ in range(2)]
    for risk, target in zip(pair, (30.0, -30.0), strict=True):
        risk.targets[0] = target
    assert moved_by_one_example(pair, 20.0) > 7.0
    with pytest.raises(ValueError, match="targets must be exactly -1 or 1"):
        logistic_risk(rows, pair[0].targets)
    with pytest.raises(ValueError, match="targets must be exactly -1 or 1"):
        logistic_risk(rows, np.arange(N) % 2)  # 0 and 1, as scikit-learn numbers classes


def test_the_sensitivity_is_attained_by_linear_losses():
    rows = np.zeros((N, 2))
    rows[0, 0] = 1.0
    other = -rows
    moved = [
        minimise(Objective(mean_risk(r), 0.5), Unconstrained(), tolerance=1e-13).x for r in (rows, other)
    ]
    assert np.linalg.norm(moved[0] - moved[1]) == pytest.approx(l2_sensitivity(mean_risk(rows), 0.5))
    assert l2_sensitivity(mean_risk(rows), 0.5) == 2 / (0.5 * N)
    assert l2_sensitivity(mean_risk(rows), 0.5, "add-or-remove-one") == 1 / (0.5 * N)


def test_the_pure_sensitivity_is_the_specified_one():
    smooth = FunctionRisk(lambda x: (0.0, x), N, 1000, Regularity.sparse(2.0, 4, smoothness=3.0))
    lam, l2 = 0.5, 2 * 2.0 / (0.5 * N)
    sparse_way = (2 * 2.0 * 2.0 / (lam * N)) * (math.sqrt(2) * (3.0 / lam) * (N - 1) / N + 1)
    assert l1_sensitivity(smooth, lam) == pytest.approx(min(sparse_way, math.sqrt(1000) * l2))
    assert l1_sensitivity(smooth, lam, constrained=True) == pytest.approx(math.sqrt(1000) * l2)
    # For a linear model the factor sqrt(2) is gone: common examples keep their support.
    linear = replace(some_risk(n=N, d=900), row_l1=3.0)
    assert l1_sensitivity(linear, 10.0) == pytest.approx(
        (2 * 3.0 / (10.0 * N)) * (0.25 / 10.0 * (N - 1) / N + 1)
    )


@pytest.mark.parametrize("pure", [False, True])
def test_noise_and_slack(pure):
    """std = 1.01 Delta sigma_AG (scale = 1.01 Delta_1 / eps): distribution of what is released."""
    rows = clip_rows(np.random.default_rng(1).standard_normal((N, 20_000)), l2=1.0)
    risk, lam, epsilon, delta = mean_risk(rows), 0.3, 0.8, 0.0 if pure else 1e-4
    result = output_perturbation(risk, epsilon=epsilon, delta=delta, lam=lam, source=NoiseSource(seed=1))
    if pure:
        scale, law = 1.01 * l1_sensitivity(risk, lam) / epsilon, stats.laplace
    else:
        scale, law = 1.01 * l2_sensitivity(risk, lam) * analytic_gaussian_sigma(epsilon, delta), stats.norm
    assert result.noise_scale == pytest.approx(scale)
    noise = (result.x - rows.mean(axis=0) / lam) / scale
    assert stats.kstest(noise, law.cdf).pvalue > 1e-9
    assert stats.kstest(1.25 * noise, law.cdf).pvalue < 1e-9


def test_audit_and_unsolved_minimisers_as_positive_control():
    """A solver that stops at gradient norm tol may stop on different sides: 2 tol / lam more sensitivity."""
    epsilon, delta, lam = 2.0, 0.05, 0.5
    rows = np.zeros((N, 1))
    rows[0] = 1.0
    pair = (rows, -rows)

    source = NoiseSource(seed=0)

    def released(data, stream):
        source.noise = stream
        return output_perturbation(mean_risk(data), epsilon=epsilon, delta=delta, lam=lam, source=source).x

    arguments = {"runs": 2000, "delta": delta, "claimed": epsilon, "stream": NoiseSource(seed=2).noise}
    statistic = lambda x: float(x[0])  # noqa: E731
    right = audit(repeated(released, statistic), pair, **arguments)
    assert not right.refuted
    assert right.lower_bound > 0.4

    tol = 0.08  # not 0.005 lam Delta = 0.0005
    noise = GaussianNoise.calibrated(l2_sensitivity(mean_risk(rows), lam), epsilon, delta)

    def stopped_early(data, stream, runs):
        exact_point = data.mean() / lam
        return noise.add(np.full(runs, exact_point + np.sign(exact_point) * tol / lam), stream)

    assert audit(stopped_early, pair, **{**arguments, "runs": 200_000}).refuted

    def half_the_sensitivity(data, stream, runs):  # L / (lam n): an example taken out, not replaced
        return GaussianNoise(noise.std / 2).add(np.full(runs, data.mean() / lam), stream)

    assert audit(half_the_sensitivity, pair, **{**arguments, "runs": 200_000}).refuted


@pytest.mark.parametrize("domain", [Unconstrained(), Box(-0.2, 0.3), Ball(0.4), Simplex(1.0)], ids=repr)
@pytest.mark.parametrize("delta", [1e-4, 0.0])
def test_domains(domain, delta):
    """The answer lies in the domain; the l_inf step moves it by no more than the noise."""
    risk = some_risk()
    result = output_perturbation(
        risk, epsilon=1.0, delta=delta, lam=0.2, domain=domain, source=NoiseSource(seed=3)
    )
    assert np.allclose(domain.linf_nearest(result.x), result.x, atol=1e-9)
    if delta == 0.0 and not isinstance(domain, Unconstrained):
        assert result.sensitivity == pytest.approx(math.sqrt(4) * l2_sensitivity(risk, 0.2))


@pytest.mark.parametrize("goal", ["empirical", "population"])
def test_lambda_from_the_theorem(goal):
    risk = some_risk()
    common = {"epsilon": 1.0, "delta": 1e-4, "goal": goal}
    given = output_perturbation(risk, diameter=2.0, **common)
    assert given.lam == theorem_lambda(
        risk.regularity, n=risk.n, dimension=risk.dimension, diameter=2.0, **common
    )
    assert output_perturbation(risk, domain=Ball(2.0), **common).lam == given.lam


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_error_bound_holds(delta):
    """Excess empirical risk below Theorem 5.1's bound, 60 runs, beta = 0.05: 3 misses expected at most.

    The best point has a norm just below D, so that it is the best of the ball too.
    """
    risk = some_risk(n=2000, d=10)
    best_point = exact(risk, 1e-6)
    reach = 1.05 * float(np.linalg.norm(best_point))
    best = risk.value_and_gradient(best_point)[0]
    source = NoiseSource(seed=4)
    misses = 0
    for domain in (Unconstrained(), Ball(reach)):
        for _ in range(30):
            result = output_perturbation(
                risk, epsilon=1.0, delta=delta, domain=domain, diameter=reach, source=source, beta=0.05
            )
            misses += risk.value_and_gradient(result.x)[0] - best > result.error_bound
    assert misses <= 18


def test_statement():
    result = output_perturbation(some_risk(), epsilon=0.3, lam=0.1, adjacency="add-or-remove-one")
    assert (result.statement.epsilon, result.statement.delta) == (0.3, 1 / 3000)
    assert result.statement.adjacency == "add-or-remove-one"
    assert "public" in result.statement.notes[0]
    assert result.statement.private
    assert SLACK == 0.01
    assert "NOT PRIVATE" in str(
        output_perturbation(some_risk(), epsilon=0.3, lam=0.1, source=NoiseSource(seed=1)).statement
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lam": 0}, "lam must be positive, got 0"),
        ({"lam": -1.0}, "lam must be positive"),
        ({}, "diameter must be given .* unbounded"),
        ({"diameter": math.inf}, "diameter must be finite"),
        ({"lam": 1.0, "epsilon": 0.0}, "epsilon must be positive"),
        ({"lam": 1.0, "delta": 2.0}, "delta must lie"),
        ({"lam": 1.0, "adjacency": "none"}, "adjacency must be"),
        ({"diameter": 1.0, "goal": "all"}, "goal must be"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        output_perturbation(some_risk(), **{"epsilon": 1.0, **arguments})


def test_rows_that_were_not_clipped_are_refused():
    risk = LinearRisk(np.full((5, 2), 3.0), np.ones(5), LogisticLoss(), 1.0, 1.0)
    with pytest.raises(ValueError, match="shorten them with clip_rows"):
        output_perturbation(risk, epsilon=1.0, lam=0.1)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("delta", [1e-4, 0.0])
@pytest.mark.parametrize("domain", [Unconstrained(), Ball(3.0)], ids=repr)
def test_the_noise_that_is_drawn_is_the_noise_that_was_accounted_for(monkeypatch, adjacency, delta, domain):
    """1.01 times the farthest that one example moves the minimiser; the rest is for the solver, and it keeps to it.

    Linear losses attain the sensitivity, so the move is measured and not taken from the code.
    """
    lam, epsilon = 0.5, 0.7
    calls = spy(monkeypatch, noise_module, "gaussian" if delta else "laplace")
    solved = spy(monkeypatch, output_module, "minimise")
    rows = np.zeros((N, 3))
    rows[0] = 1 / math.sqrt(3)
    pair = (rows, -rows) if adjacency == "replace-one" else (rows, 0 * rows)
    results = [
        output_perturbation(
            mean_risk(each),
            epsilon=epsilon,
            delta=delta,
            lam=lam,
            domain=domain,
            adjacency=adjacency,
            source=NoiseSource(1),
        )
        for each in pair
    ]
    first, second = calls
    moved = np.linalg.norm(first["values"] - second["values"], 2 if delta else 1)
    for call, solve, result in zip(calls, solved, results, strict=True):
        scale = call["std" if delta else "scale"]
        assert scale == result.noise_scale
        ratio = scale / (1.01 * moved)
        spent = epsilon_of([(GaussianDpEvent(ratio), 1)], delta) if delta else 1 / ratio
        assert spent == pytest.approx(epsilon, rel=1e-4)
        distance = solve["tolerance"] / lam * (1 if delta else math.sqrt(3))
        assert distance == pytest.approx(0.0025 * moved, rel=1e-4)
        assert (result.statement.epsilon, result.statement.delta) == (epsilon, delta)
        assert result.statement.adjacency == adjacency
