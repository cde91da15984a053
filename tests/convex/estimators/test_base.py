import pickle
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import check_estimator
from support.sparse_rows import sparse_problem

from sparsedp.convex import (
    Ball,
    CompositionWarning,
    DataDependentWarning,
    FitDiagnostics,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
    Simplex,
)

pytestmark = pytest.mark.filterwarnings("ignore:classes was not given")


ESTIMATORS = [PrivateLogisticRegression, PrivateLinearSVC, PrivateRidge]


# These compare two fits on the same data, which differ where noise is fresh: DP forbids them to agree.
FRESH_NOISE = dict.fromkeys(
    (
        "check_classifier_data_not_an_array",
        "check_regressor_data_not_an_array",
        "check_supervised_y_2d",
        "check_regressors_int",
        "check_fit_idempotent",
    ),
    "two fits on the same data have different noise",
)


def quiet(estimator, *data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompositionWarning)
        warnings.simplefilter("ignore", DataDependentWarning)
        return estimator.fit(*data)


@pytest.mark.filterwarnings("ignore::sparsedp.convex.CompositionWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("make", ESTIMATORS)
def test_scikit_learns_own_checks_with_a_seed(make):
    check_estimator(make(seed=0))


@pytest.mark.filterwarnings("ignore::sparsedp.convex.CompositionWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize(
    "estimator",
    [
        PrivateLogisticRegression(),
        pytest.param(PrivateLogisticRegression(mechanism="output"), marks=pytest.mark.slow),
        pytest.param(PrivateLogisticRegression(delta=0), marks=pytest.mark.slow),
        pytest.param(PrivateLinearSVC(), marks=pytest.mark.slow),
        pytest.param(PrivateRidge(), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_scikit_learns_own_checks_with_fresh_noise(estimator):
    check_estimator(estimator, expected_failed_checks=FRESH_NOISE)


@pytest.mark.parametrize("mechanism", ["output", "objective", "descent"])
@pytest.mark.parametrize("classes", [2, 3])
def test_sparse_and_dense_rows_give_the_same_model(mechanism, classes):
    rows, y = sparse_problem(classes=classes)
    models = [
        PrivateLogisticRegression(mechanism=mechanism, seed=1).fit(data, y)
        for data in (rows, rows.toarray(), sparse.csc_matrix(rows))
    ]
    for other in models[1:]:
        assert np.allclose(models[0].coef_, other.coef_, atol=1e-6)
        assert np.allclose(
            models[0].decision_function(rows), other.decision_function(rows.toarray()), atol=1e-6
        )
    assert models[0].coef_.shape == ((1, 400) if classes == 2 else (3, 400))


@pytest.mark.parametrize("make", ESTIMATORS)
def test_sparse_rows_are_never_densified(make):
    """2000 rows of a million features, four ones each, would be 16 GB."""
    n, d = 2000, 1_000_000
    generator = np.random.default_rng(0)
    rows = sparse.csr_array(
        (np.ones(4 * n), generator.integers(0, d, 4 * n), np.arange(0, 4 * n + 1, 4)), shape=(n, d)
    )
    y = generator.integers(0, 2, n)
    extra = {} if make is PrivateRidge else {"mechanism": "output"}
    model = make(lam=1.0, seed=0, **extra).fit(rows, y)
    assert model.predict(rows[:5]).shape == (5,)


@pytest.mark.parametrize("make", [PrivateLogisticRegression, PrivateLinearSVC])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(
    "how",
    [{}, {"mechanism": "output", "sparsity": 6}, {"mechanism": "objective"}, {"delta": 0, "sparsity": 6}],
)
def test_classifiers_learn(make, classes, how):
    rows, y = sparse_problem(n=4000, d=200, classes=classes)
    model = make(epsilon=4.0, seed=0, **how).fit(rows[:3000], y[:3000])
    assert model.score(rows[3000:], y[3000:]) > 0.85
    assert set(model.predict(rows[3000:])) <= set(range(classes))


def test_ridge_learns():
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((20_000, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    y = rows @ np.array([0.6, -0.5, 0.2, 0.0]) + 0.1 + generator.normal(0, 0.05, 20_000)
    model = PrivateRidge(epsilon=2.0, lam=0.01, seed=0).fit(rows, y)
    assert model.score(rows, y) > 0.6
    assert np.linalg.norm([*model.coef_, model.intercept_ / 0.25]) <= 1.0 + 1e-9


@pytest.mark.parametrize("make", ESTIMATORS)
def test_the_statement_of_a_fit(make):
    rows, y = sparse_problem(n=200)
    statement = make(epsilon=0.6).fit(rows, y).statement_
    assert (statement.epsilon, statement.delta, statement.adjacency) == (0.6, 1 / 2000, "replace-one")
    assert statement.private
    assert "200 examples" in statement.released
    seeded = make(epsilon=0.6, seed=3, adjacency="add-or-remove-one").fit(rows, y).statement_
    assert not seeded.private
    assert any("number of examples is public" in note for note in seeded.notes)


def test_long_rows_are_shortened_in_fit_and_in_predict():
    rows, y = sparse_problem(n=300)
    short = quiet(PrivateLogisticRegression(seed=0), Normalizer().fit_transform(rows.toarray()), y)
    long = quiet(PrivateLogisticRegression(seed=0), 1000.0 * rows.toarray(), y)
    assert np.allclose(short.coef_, long.coef_, atol=1e-6)
    assert np.allclose(
        short.decision_function(rows), long.decision_function(1000.0 * rows.toarray()), atol=1e-6
    )


def test_data_norm_is_a_unit():
    """Features in other units with data_norm in the same units: the same model in those units."""
    rows, y = sparse_problem(n=300)
    arguments = {"mechanism": "descent", "fit_intercept": False, "seed": 0}
    one = quiet(PrivateLogisticRegression(data_norm=1.0, **arguments), rows, y)
    ten = quiet(PrivateLogisticRegression(data_norm=10.0, **arguments), 10.0 * rows, y)
    assert np.allclose(one.coef_, 10.0 * ten.coef_, atol=1e-4)


def test_one_example_cannot_move_the_model_far():
    """A row of a million and a wrong label, with the same noise: no farther than the sensitivity says."""
    rows, y = sparse_problem(n=200, d=40)
    poisoned = rows.toarray()
    poisoned[0] = 1e6
    turned = y.copy()
    turned[0] = 1 - y[0]
    for mechanism in ("output", "objective"):
        models = [
            quiet(PrivateLogisticRegression(mechanism=mechanism, lam=0.05, seed=0), *data)
            for data in ((rows.toarray(), y), (poisoned, turned))
        ]
        moved = np.linalg.norm(models[0].coef_ - models[1].coef_)
        assert 0 < moved <= 2 * 0.5 * np.hypot(1.0, 0.25) / (0.05 * 200) * 1.02


def test_pipeline_over_text():
    texts = [
        "the cow eats grass",
        "a tractor ploughs the field",
        "the cow gives milk",
        "the tractor needs fuel",
    ] * 40
    y = ["cow", "tractor"] * 80
    model = make_pipeline(HashingVectorizer(n_features=2**14), PrivateLogisticRegression(epsilon=8.0, seed=0))
    assert model.fit(texts, y).score(texts, y) > 0.9


@pytest.mark.parametrize("make", ESTIMATORS)
def test_pickle_and_clone(make):
    rows, y = sparse_problem(n=100)
    model = make(epsilon=2.0, seed=0).fit(rows, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(rows), model.predict(rows))
    assert again.statement_ == model.statement_
    assert clone(model).get_params() == model.get_params()
    unseeded = pickle.loads(pickle.dumps(make().fit(rows, y)))
    assert "seed" not in str(unseeded.statement_)


def test_domains_reach_the_weights():
    rows, y = sparse_problem(n=500, d=30)
    ball = PrivateLogisticRegression(domain=Ball(0.5), lam=0.01, seed=0).fit(rows, y)
    assert np.hypot(np.linalg.norm(ball.coef_), ball.intercept_[0] / 0.25) <= 0.5 + 1e-9
    simplex = PrivateLogisticRegression(domain=Simplex(2.0), lam=0.01, fit_intercept=False, seed=0).fit(
        rows, y
    )
    assert simplex.coef_.min() >= 0.0
    assert simplex.coef_.sum() == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lam": 0}, "lam must be positive, got 0"),
        ({"lam": 0, "mechanism": "output"}, "lam must be positive, got 0"),
        ({"lam": -1.0}, "lam must be positive"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"epsilon": None}, "epsilon must be a number"),
        ({"delta": 1.0}, "delta must lie"),
        ({"mechanism": "magic"}, "mechanism must be one of"),
        ({"mechanism": "descent", "delta": 0}, "mechanism 'descent' needs delta"),
        ({"mechanism": "descent", "lam": 0.1}, "mechanism 'descent' needs delta"),
        ({"mechanism": "objective", "domain": Ball(1.0)}, "domain is for mechanism 'output'"),
        ({"data_norm": 0.0}, "data_norm must be positive"),
        ({"data_norm": np.inf}, "data_norm must be finite"),
        ({"sparsity": 0}, "sparsity must be at least 1"),
        ({"sparsity": 41, "delta": 0}, "sparsity must be at most the number of features 40"),
        ({"radius": np.inf, "mechanism": "output"}, "radius must be finite"),
        ({"goal": "fame", "mechanism": "output"}, "goal must be"),
        ({"adjacency": "touching"}, "adjacency must be"),
        ({"intercept_scaling": 0.0}, "intercept_scaling must be positive"),
        ({"steepest": 2.0}, "steepest must lie in"),
    ],
)
def test_bad_parameters(parameters, message):
    rows, y = sparse_problem(n=60, d=40)
    with pytest.raises(ValueError, match=message):
        PrivateLogisticRegression(**parameters).fit(rows, y)


def test_bad_data():
    rows, y = sparse_problem(n=60, d=40)
    with pytest.raises(ValueError, match="at least two classes, got one class"):
        PrivateLogisticRegression().fit(rows, np.zeros(60))
    with pytest.raises(ValueError, match="0 sample"):
        PrivateLogisticRegression().fit(np.zeros((0, 40)), np.zeros(0))
    with pytest.raises(ValueError, match="requires y to be passed"):
        PrivateLogisticRegression().fit(rows, None)
    with pytest.raises(ValueError, match="target_bound must be positive"):
        PrivateRidge(target_bound=0.0).fit(rows, y)
    with pytest.raises(ValueError, match="radius must be finite"):
        PrivateRidge(radius=np.inf).fit(rows, y)
    with pytest.raises(ValueError, match="y must hold finite targets"):
        PrivateRidge().fit(rows, np.full(60, np.nan))
    with pytest.raises(ValueError, match="classes must hold at least two"):
        PrivateLogisticRegression(classes=[1]).fit(rows, y)
    with pytest.raises(ValueError, match="classes must be of the kind of y"):
        PrivateLogisticRegression(classes=["no", "yes"]).fit(rows, y)


@pytest.mark.parametrize("make", [PrivateLogisticRegression, PrivateLinearSVC])
def test_the_class_set_is_a_parameter(make):
    """One row with a label of its own: it must not show in the shape of what is released, nor be refused."""
    rows, y = sparse_problem(n=200, d=40)
    strange = y.copy()
    strange[7] = 5
    with pytest.warns(DataDependentWarning, match="classes was not given"):
        open_set = make(seed=0).fit(rows, strange)
    assert open_set.classes_.tolist() == [0, 1, 5]  # the old form, and what it gives away
    assert "not covered: the set of labels was read from the data" in open_set.statement_.notes
    with pytest.warns(UserWarning, match="1 labels are not in classes"):
        model = make(classes=[1, 0], seed=0).fit(rows, strange)
    assert model.classes_.tolist() == [0, 1]
    assert model.coef_.shape == (1, 40)
    assert model.diagnostics_.unknown_labels == 1
    assert "the set of labels was given as classes and is public" in model.statement_.notes
    emptied = rows.toarray()
    emptied[7] = np.nan
    same = quiet(make(classes=[0, 1], seed=0), emptied, y)
    assert np.array_equal(same.coef_, model.coef_)
    wider = quiet(make(classes=[0, 1, 5], seed=0), rows, y)
    assert wider.classes_.tolist() == [0, 1, 5]
    assert wider.coef_.shape == (3, 40)
    words = quiet(make(classes=["no", "yes"], seed=0), rows, np.array(["no", "yes"])[y])
    assert set(words.predict(rows)) <= {"no", "yes"}


@pytest.mark.parametrize("make", ESTIMATORS)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_a_row_that_is_not_finite_counts_as_an_empty_one(make, form):
    """Its gradient is zero, that of the intercept included: the fit is that of any other row made empty."""
    rows, y = sparse_problem(n=120, d=30)
    rows = rows.toarray()
    models = []
    for value in (np.nan, np.inf, -np.inf):
        spoiled = rows.copy()
        spoiled[3, 3] = value
        models.append(quiet(make(seed=0), form(spoiled), y))
    assert all(np.array_equal(model.coef_, models[0].coef_) for model in models)
    assert np.isfinite(models[0].coef_).all()
    assert models[0].diagnostics_ == FitDiagnostics(clipped_rows=110, broken_rows=1)
    assert not np.array_equal(quiet(make(seed=0), form(rows), y).coef_, models[0].coef_)
    spoiled[3, 3] = np.nan
    assert np.isfinite(models[0].predict(form(spoiled))).all()


def test_a_target_that_is_not_finite_counts_as_an_empty_example():
    rows, y = sparse_problem(n=120, d=30)
    spoiled = y.astype(float)
    spoiled[3] = np.nan
    model = PrivateRidge(seed=0).fit(rows, spoiled)
    emptied = rows.toarray()
    emptied[3] = np.nan
    assert np.array_equal(model.coef_, PrivateRidge(seed=0).fit(emptied, y).coef_)
    assert model.diagnostics_.broken_rows == 1


def test_auto_chooses_the_mechanism_by_public_settings():
    assert PrivateLogisticRegression()._mechanism(1e-5, None) == "descent"
    assert PrivateLogisticRegression()._mechanism(0.0, None) == "objective"
    assert PrivateLogisticRegression(lam=0.1)._mechanism(1e-5, None) == "objective"
    assert PrivateLogisticRegression()._mechanism(1e-5, Ball(1.0)) == "output"
