"""The warnings of the estimators: several fits, and preprocessing that learns from the data."""

import copy
import pickle
import warnings

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, Normalizer, StandardScaler
from sklearn.random_projection import SparseRandomProjection
from support.sparse_rows import sparse_problem

from sparsedp.convex import (
    CompositionWarning,
    DataDependentWarning,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRidge,
)

pytestmark = pytest.mark.filterwarnings("ignore:classes was not given")


def test_cross_validation_warns_that_fits_add_up():
    rows, y = sparse_problem(n=200)
    with pytest.warns(CompositionWarning, match="have now made 2 private fits"):
        scores = cross_val_score(PrivateLogisticRegression(seed=0), rows, y, cv=3)
    assert scores.shape == (3,)
    search = GridSearchCV(PrivateLinearSVC(seed=0), {"smoothing": [0.3, 0.6]}, cv=2)
    with pytest.warns(CompositionWarning, match="spends up to 5 times as much"):
        search.fit(rows, y)


def test_one_fit_does_not_warn_and_a_second_does():
    rows, y = sparse_problem(n=100)
    model = PrivateLogisticRegression(classes=[0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(rows, y)
    with pytest.warns(CompositionWarning):
        model.fit(rows, y)
    with pytest.warns(CompositionWarning):
        clone(model).fit(rows, y)
    with pytest.warns(CompositionWarning, match="4 private fits"):
        copy.deepcopy(model).fit(rows, y)


def fit_elsewhere(pickled, rows, y):
    """What a job in another process does: its warnings are not seen here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pickle.loads(pickled).fit(rows, y).score(rows, y)


def test_fits_in_other_processes_are_counted_where_they_are_sent():
    """As joblib does it: clones go out pickled and unfitted, and only scores come back."""
    rows, y = sparse_problem(n=60, d=40)
    model = make_pipeline(Normalizer(), PrivateLogisticRegression(classes=[0, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = pickle.dumps(clone(model))
        copy.deepcopy(model)
    with pytest.warns(CompositionWarning, match="sent to other processes for, or made, 2 private fits"):
        second = pickle.dumps(clone(model))
    assert fit_elsewhere(first, rows, y) <= 1.0
    with pytest.warns(CompositionWarning, match="have now made 2 private fits"):
        pickle.loads(second).fit(rows, y)
    with pytest.warns(CompositionWarning, match="have now made 3 private fits"):
        clone(model).fit(rows, y)
    fitted = PrivateLogisticRegression(classes=[0, 1]).fit(rows, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.dumps(fitted)
        pickle.dumps(fitted)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loky", "multiprocessing", "threading"])
def test_cross_validation_in_two_processes_warns(backend):
    rows, y = sparse_problem(n=200)
    with joblib.parallel_backend(backend), pytest.warns(CompositionWarning, match="[23] private fits"):
        cross_val_score(PrivateLogisticRegression(classes=[0, 1]), rows, y, cv=3, n_jobs=2)


@pytest.mark.parametrize(
    ("steps", "learning"),
    [
        ([StandardScaler(with_mean=False)], "StandardScaler"),
        ([MaxAbsScaler(), Normalizer()], "MaxAbsScaler"),
        ([TfidfTransformer()], "TfidfTransformer"),
        ([make_pipeline(Normalizer(), TruncatedSVD(5))], "TruncatedSVD"),
        ([FeatureUnion([("a", MaxAbsScaler()), ("b", Normalizer())])], "MaxAbsScaler"),
        ([ColumnTransformer([("a", MaxAbsScaler(), [0, 1]), ("b", "passthrough", [2])])], "MaxAbsScaler"),
    ],
    ids=repr,
)
def test_preprocessing_that_learns_is_warned_about(steps, learning):
    rows, y = sparse_problem(n=100, d=40)
    model = make_pipeline(*steps, PrivateLogisticRegression(classes=[0, 1]))
    with pytest.warns(
        DataDependentWarning, match=f"{learning} before PrivateLogisticRegression learns from the data"
    ):
        model.fit(rows.tocsr(), y)
    assert f"not covered: what {learning} learnt from the data before" in model[-1].statement_.notes
    outer = make_pipeline(Normalizer(), make_pipeline(*steps, PrivateRidge()))
    with pytest.warns(DataDependentWarning, match=f"{learning} before PrivateRidge"):
        outer.fit(rows.tocsr(), y)


@pytest.mark.parametrize(
    "steps",
    [
        [Normalizer(), FunctionTransformer()],
        ["passthrough"],
        [TfidfTransformer(use_idf=False)],
        [FrozenEstimator(MaxAbsScaler().fit(np.ones((3, 40))))],
        [SparseRandomProjection(n_components=10)],
    ],
    ids=repr,
)
def test_preprocessing_that_learns_nothing_is_not(steps):
    rows, y = sparse_problem(n=100, d=40)
    model = make_pipeline(*steps, PrivateLogisticRegression(classes=[0, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(rows.tocsr(), y)
    assert not any("not covered" in note for note in model[-1].statement_.notes)
