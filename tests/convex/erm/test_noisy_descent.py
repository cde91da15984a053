import math
import sys

import numpy as np
import pytest
from scipy import sparse, stats
from support.spies import spy

from sparsedp.accounting import GaussianDpEvent, analytic_gaussian_sigma, epsilon_of
from sparsedp.audit.distinguishing import audit, repeated
from sparsedp.convex import LinearRisk, LogisticLoss, SoftmaxLoss, noisy_descent
from sparsedp.convex import noise as noise_module
from sparsedp.convex.clip import clip_rows
from sparsedp.convex.erm.noisy_descent import (
    _choose_schedule,
    _choose_steps,
    _clipped_gradient,
    momentum,
    no_momentum,
)
from sparsedp.convex.erm.regularization import FREE_MARGIN
from sparsedp.randomness import NoiseSource


def risk_of(n=200, d=6, loss=None, seed=0):
    loss = LogisticLoss() if loss is None else loss
    generator = np.random.default_rng(seed)
    rows = clip_rows(generator.standard_normal((n, d)) * 3, l2=1.0)
    k = loss.outputs
    targets = generator.integers(0, k, n).astype(float) if k > 1 else np.sign(rows[:, 0])
    return LinearRisk(sparse.csr_array(rows), targets, loss, 1.0, math.sqrt(d))


@pytest.mark.parametrize("factor", [0.25, 8.0])
def test_rows_of_any_length_are_fitted_as_rows_of_length_one(factor, monkeypatch):
    """Rows c times as long have gradients, sensitivity and noise c times as large."""
    risk = risk_of()
    longer = LinearRisk(risk.rows * factor, risk.targets, risk.loss, factor, factor * risk.row_l1)
    drawn = spy(monkeypatch, noise_module, "gaussian")
    found = [
        noisy_descent(each, epsilon=1.0, delta=1e-6, steps=5, source=NoiseSource(1))
        for each in (risk, longer)
    ]
    assert found[1].sensitivity == pytest.approx(factor * found[0].sensitivity)
    assert found[1].noise_scale == pytest.approx(factor * found[0].noise_scale)
    assert [call["std"] for call in drawn] == [found[0].noise_scale] * 5 + [found[1].noise_scale] * 5


@pytest.mark.parametrize(("loss", "clip"), [(LogisticLoss(1.0), 0.4), (SoftmaxLoss(4), 1.0)], ids=repr)
def test_sensitivity_of_a_clipped_gradient(loss, clip):
    generator = np.random.default_rng(1)
    worst = 0.0
    for seed in range(60):
        risk = risk_of(n=10, loss=loss, seed=seed)
        targets, rows = risk.targets.copy(), risk.rows.toarray()
        rows[0] = generator.standard_normal(6)
        rows[0] /= np.linalg.norm(rows[0])
        first = LinearRisk(rows, targets, loss, 1.0, 1.0)
        changed, turned = rows.copy(), targets.copy()
        changed[0] = -rows[0] * generator.choice([-1, 1])
        turned[0] = (targets[0] + 1) % 4 if loss.outputs > 1 else -targets[0]
        second = LinearRisk(changed, turned, loss, 1.0, 1.0)
        x = generator.standard_normal(risk.dimension) * generator.choice([0.0, 5.0, 50.0])
        moved = np.linalg.norm(_clipped_gradient(first, x, clip) - _clipped_gradient(second, x, clip))
        assert moved <= 2 * clip / 10 * (1 + 1e-12)
        worst = max(worst, moved)
    assert worst > 0.6 * 2 * clip / 10


def test_one_step_is_the_gaussian_mechanism_on_the_gradient():
    risk = risk_of(d=4000)
    result = noisy_descent(risk, epsilon=0.7, delta=1e-4, steps=1, source=NoiseSource(seed=2))
    length = 1 / (0.25 * 1.0)
    std = 2 * 0.5 / 200 * analytic_gaussian_sigma(0.7, 1e-4)
    noise = (-result.x / length - _clipped_gradient(risk, np.zeros(4000), 0.5)) / std
    assert result.noise_scale == pytest.approx(std)
    assert stats.kstest(noise, stats.norm.cdf).pvalue > 1e-9
    assert stats.kstest(noise * 1.25, stats.norm.cdf).pvalue < 1e-9


def test_noise_grows_with_the_root_of_the_steps():
    """T Gaussians of sigma sqrt(T) are one of sigma: exact composition, so the budget is met at any T."""
    risk = risk_of()
    scales = [noisy_descent(risk, epsilon=1.0, delta=1e-4, steps=t).noise_scale for t in (1, 4, 25)]
    assert scales[1] == pytest.approx(2 * scales[0])
    assert scales[2] == pytest.approx(5 * scales[0])
    alone = noisy_descent(risk, epsilon=1.0, delta=1e-4, steps=1, adjacency="add-or-remove-one")
    assert alone.noise_scale == pytest.approx(scales[0] / 2)


def test_audit_and_noise_that_ignores_the_number_of_steps():
    epsilon, delta, steps, n = 1.0, 0.1, 9, 4
    rows, targets = np.ones((n, 1)), np.array([1.0, -1.0, 1.0, -1.0])
    other = targets.copy()
    other[0] = -1.0
    pair = tuple(LinearRisk(rows, t, LogisticLoss(), 1.0, 1.0) for t in (targets, other))

    source = NoiseSource(seed=0)

    def released(risk, stream):
        source.noise = stream
        return noisy_descent(risk, epsilon=epsilon, delta=delta, steps=steps, source=source).x

    arguments = {"delta": delta, "claimed": epsilon, "stream": NoiseSource(seed=3).noise}
    right = audit(repeated(released, lambda x: float(x[0])), pair, runs=600, **arguments)
    assert not right.refuted

    std = 2 * 0.5 / n * analytic_gaussian_sigma(epsilon, delta)  # not times sqrt(steps)

    def too_quiet(risk, stream, runs):
        x = look = np.zeros(runs)
        for step in range(steps):
            slopes = np.mean([-t * np.minimum(1 / (1 + np.exp(t * look)), 0.5) for t in risk.targets], axis=0)
            moved = look - 4.0 * (slopes + std * stream.normal(runs))
            look, x = moved + momentum(step) * (moved - x), moved
        return x

    assert audit(too_quiet, pair, runs=100_000, **arguments).refuted


@pytest.mark.parametrize("push", [momentum, no_momentum])
def test_steps_are_chosen_so_that_noise_alone_stays_within_the_free_margin(push):
    generator = np.random.default_rng(0)
    for spread in (1e-3, 0.02, 0.1):
        steps = _choose_steps(spread, FREE_MARGIN, push)
        noise = generator.standard_normal((steps, 20_000)) * spread * math.sqrt(steps)
        x = look = np.zeros(20_000)
        for step in range(steps):
            moved = look - noise[step]
            look, x = moved + push(step) * (moved - x), moved
        assert 0.5 * FREE_MARGIN < x.std() < 1.1 * FREE_MARGIN or steps == 300
    assert _choose_steps(100.0, FREE_MARGIN, push) == 1
    assert _choose_steps(1e-9, FREE_MARGIN, push) == 300


def test_few_steps_are_equal_and_long_and_many_have_momentum():
    risk = risk_of(loss=SoftmaxLoss(20))
    few, many = (_choose_schedule(risk, std, None) for std in (1e-3, 1e-6))
    assert few.momentum is no_momentum
    assert few.length == pytest.approx(20.0)
    assert few.steps < 300
    assert (many.momentum, many.steps) == (momentum, 300)
    assert many.length == pytest.approx(2.0)
    assert _choose_schedule(risk_of(), 1e-3, 7).steps == 7


def test_it_learns():
    generator = np.random.default_rng(4)
    rows = clip_rows(generator.standard_normal((6000, 8)), l2=1.0)
    targets = np.sign(rows @ np.array([1.0, -1.0, 1.0, 0.5, 0, 0, 0, 0]))
    risk = LinearRisk(rows, targets, LogisticLoss(), 1.0, math.sqrt(8))
    x = noisy_descent(risk, epsilon=1.0, source=NoiseSource(seed=5)).x
    assert np.mean(np.sign(rows @ x) == targets) > 0.93


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"delta": 0.0}, "delta must lie"),
        ({"slope_clip": 0.0}, "slope_clip must be positive"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
        ({"adjacency": "x"}, "adjacency must be"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        noisy_descent(risk_of(), **{"epsilon": 1.0, **arguments})


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("slope_clip", [None, 0.3, 5.0])
@pytest.mark.parametrize("steps", [None, 7])
def test_the_noise_that_is_drawn_is_the_noise_that_was_accounted_for(
    monkeypatch, adjacency, slope_clip, steps
):
    """As many Gaussians as steps, at the sensitivity of gradients clipped as they were, compose to the statement."""
    epsilon, delta, n = 0.8, 1e-5, 40
    calls = spy(monkeypatch, noise_module, "gaussian")
    gradients = spy(monkeypatch, sys.modules["sparsedp.convex.erm.noisy_descent"], "_clipped_gradient")
    risk = risk_of(n=n, loss=LogisticLoss(1.0))
    result = noisy_descent(
        risk,
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        slope_clip=slope_clip,
        adjacency=adjacency,
        source=NoiseSource(1),
    )
    assert len(calls) == len(gradients) == (steps or len(calls)) > 0
    clip = gradients[0]["clip"]
    assert clip == (1.0 if slope_clip is None else min(1.0, slope_clip))
    # A row of norm 1 whose slope is clipped, there and gone, or turned round.
    moved = (2 if adjacency == "replace-one" else 1) * clip / n
    for call, gradient in zip(calls, gradients, strict=True):
        assert call["std"] == result.noise_scale
        assert gradient["clip"] == clip
        assert np.array_equal(call["values"], gradient["returned"])
    event = GaussianDpEvent(result.noise_scale / moved)
    assert epsilon_of([(event, len(calls))], delta) == pytest.approx(epsilon, rel=1e-4)
    assert (result.statement.epsilon, result.statement.delta) == (epsilon, delta)
