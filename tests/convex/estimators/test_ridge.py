import numpy as np
import pytest
from sklearn.linear_model import Ridge

from sparsedp.convex import PrivateRidge


def problem(n=4000, d=3, seed=0):
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, rows @ np.array([0.4, -0.3, 0.2]) + generator.normal(0, 0.05, n)


def test_with_a_budget_without_end_it_is_scikit_learns():
    rows, y = problem()
    ours = PrivateRidge(epsilon=1e6, delta=1e-5, lam=0.01, fit_intercept=False, seed=0).fit(rows, y)
    theirs = Ridge(alpha=0.01 * 4000, fit_intercept=False).fit(rows, y)
    assert np.allclose(ours.coef_, theirs.coef_, atol=1e-3)


def test_sensitivity_is_that_of_the_squared_loss_on_the_ball():
    """L = (R B + Y) B, and the minimiser on the ball moves by no more than 2L / (lam n)."""
    rows, y = problem(n=100)
    worst = 0.0
    for value in (1e9, -1e9, 0.0):
        turned, moved_rows = y.copy(), rows.copy()
        turned[0], moved_rows[0] = value, -1e9 * rows[0]
        models = [
            PrivateRidge(epsilon=1e6, delta=1e-5, lam=0.05, radius=2.0, fit_intercept=False, seed=0).fit(
                *data
            )
            for data in ((rows, y), (moved_rows, turned))
        ]
        worst = max(worst, float(np.linalg.norm(models[0].coef_ - models[1].coef_)))
        assert models[0].noise_scale_ == models[1].noise_scale_
    assert 0.0 < worst <= 2 * (2.0 + 1.0) / (0.05 * 100)


def test_targets_beyond_the_bound_are_moved_to_it():
    rows, y = problem(n=500)
    arguments = {"lam": 0.1, "target_bound": 0.2, "seed": 0}
    clipped = PrivateRidge(**arguments).fit(rows, np.clip(y, -0.2, 0.2))
    assert np.array_equal(PrivateRidge(**arguments).fit(rows, y).coef_, clipped.coef_)


@pytest.mark.parametrize("delta", [None, 0])
def test_weights_stay_in_the_ball(delta):
    rows, y = problem(n=200)
    model = PrivateRidge(epsilon=0.5, delta=delta, radius=0.3, seed=0).fit(rows, y)
    assert np.hypot(np.linalg.norm(model.coef_), model.intercept_ / 0.25) <= 0.3 + 1e-9
    assert np.isscalar(model.intercept_)
