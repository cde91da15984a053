import pytest
from sklearn.base import BaseEstimator
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, Normalizer, PolynomialFeatures, StandardScaler

from sparsedp.convex.estimators.preprocessing import learning_steps

ROWS = [[1.0, 2.0], [0.5, -1.0]]


class Last(BaseEstimator):
    """Asks, while it is fitted, who has learnt before."""

    def fit(self, X, y=None):
        self.found_ = learning_steps(self)
        return self


def found_by(*steps, rows=ROWS):
    model = make_pipeline(*steps, Last()).fit(rows)
    while not isinstance(model, Last):
        model = model[-1]
    return model.found_


def test_no_pipeline_no_steps():
    assert Last().fit(ROWS).found_ == []
    assert found_by() == []


def test_a_pipeline_that_ends_in_another_estimator_is_not_asked():
    """The last step's own fit is inside the fit of a pipeline which holds it, but not as its last step."""

    class Outer(BaseEstimator):
        def fit(self, X, y=None):
            self.inner_ = Last().fit(X)
            return self

    model = make_pipeline(StandardScaler(), Outer()).fit(ROWS)
    assert model[-1].inner_.found_ == []


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (StandardScaler(), ["StandardScaler"]),
        (SimpleImputer(), ["SimpleImputer"]),
        (SimpleImputer(strategy="constant"), []),
        (PolynomialFeatures(), []),
        (Normalizer(), []),
    ],
    ids=repr,
)
def test_numbers(step, expected):
    assert found_by(step) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (CountVectorizer(), ["CountVectorizer"]),
        (CountVectorizer(vocabulary=["cow"]), []),
        (TfidfVectorizer(), ["TfidfVectorizer"]),
        (TfidfVectorizer(vocabulary=["cow"]), ["TfidfVectorizer"]),
        (TfidfVectorizer(vocabulary=["cow"], use_idf=False), []),
    ],
    ids=repr,
)
def test_texts(step, expected):
    assert found_by(step, rows=["a cow", "no cow"]) == expected


def test_pipelines_within_pipelines():
    outer = make_pipeline(StandardScaler(), make_pipeline(MaxAbsScaler(), Last())).fit(ROWS)
    assert outer[-1][-1].found_ == ["MaxAbsScaler", "StandardScaler"]
