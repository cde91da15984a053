import numpy as np
import pytest
from sklearn.svm import LinearSVC

from sparsedp.convex import PrivateLinearSVC

pytestmark = pytest.mark.filterwarnings("ignore:classes was not given")


def problem(classes, n=3000, seed=0):
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((n, 6))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, (rows[:, :classes] + 0.1 * generator.standard_normal((n, classes))).argmax(axis=1)


@pytest.mark.parametrize(("classes", "kind"), [(2, "ovr"), (3, "crammer_singer")])
def test_with_a_budget_without_end_and_a_sharp_corner_it_is_scikit_learns(classes, kind):
    rows, y = problem(classes)
    ours = PrivateLinearSVC(
        epsilon=1e6, delta=1e-5, lam=0.02, mechanism="output", smoothing=0.02, fit_intercept=False, seed=0
    ).fit(rows, y)
    theirs = LinearSVC(
        C=1 / (0.02 * 3000), loss="hinge", multi_class=kind, fit_intercept=False, max_iter=200_000, tol=1e-6
    ).fit(rows, y)
    assert np.mean(ours.predict(rows) == theirs.predict(rows)) > 0.98
    assert np.allclose(ours.coef_ - ours.coef_.mean(axis=0) * (classes > 2), theirs.coef_, atol=0.25)


@pytest.mark.parametrize("classes", [2, 3])
def test_margins(classes):
    rows, y = problem(classes)
    model = PrivateLinearSVC(epsilon=4.0, seed=0).fit(rows, y)
    margins = model.decision_function(rows)
    assert margins.shape == ((3000,) if classes == 2 else (3000, 3))
    assert model.score(rows, y) > 0.85
    assert not hasattr(model, "predict_proba")


def test_bad_smoothing():
    rows, y = problem(2, n=50)
    with pytest.raises(ValueError, match="smoothing must be positive"):
        PrivateLinearSVC(smoothing=0.0).fit(rows, y)
