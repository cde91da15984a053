"""What a scikit-learn pipeline learns from the data before its private last step: epsilon does not cover it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils import get_tags

_MOST_FRAMES = 50

# Steps that look as if they had to be fitted, and when they learn no more than the shape of the data.
_LEARN_NOTHING: dict[str, Callable[[Any], bool]] = {
    "FrozenEstimator": lambda step: True,
    "PolynomialFeatures": lambda step: True,
    "RBFSampler": lambda step: True,
    "SkewedChi2Sampler": lambda step: True,
    "GaussianRandomProjection": lambda step: True,
    "SparseRandomProjection": lambda step: True,
    "SimpleImputer": lambda step: step.strategy == "constant",
    "CountVectorizer": lambda step: step.vocabulary is not None,
    "TfidfTransformer": lambda step: not step.use_idf,
    "TfidfVectorizer": lambda step: step.vocabulary is not None and not step.use_idf,
}


def learning_steps(estimator: object) -> list[str]:
    """The steps that learn from data in the pipelines which are fitting ``estimator`` right now, by class name.

    A pipeline does not tell its last step about itself, so the calling frames are inspected.
    """
    return [
        type(step).__name__
        for pipeline in _pipelines_ending_in(estimator)
        for _, outer in pipeline.steps[:-1]
        for step in _parts(outer)
        if _learns(step)
    ]


def _pipelines_ending_in(estimator: object) -> Iterator[Pipeline]:
    frame, last = sys._getframe(1), estimator
    for _ in range(_MOST_FRAMES):
        caller = frame.f_locals.get("self")
        if isinstance(caller, Pipeline) and caller is not last and caller.steps[-1][1] is last:
            yield caller
            last = caller
        if frame.f_back is None:
            return
        frame = frame.f_back


def _parts(step: Any) -> Iterator[Any]:
    """The step itself, or the ones that it is made of."""
    if isinstance(step, Pipeline):
        inner = [each for _, each in step.steps]
    elif isinstance(step, FeatureUnion):
        inner = [each for _, each in step.transformer_list]
    elif isinstance(step, ColumnTransformer):
        inner = [each for _, each, _ in step.transformers]
    else:
        yield step
        return
    for each in inner:
        yield from _parts(each)


def _learns(step: Any) -> bool:
    if step is None or isinstance(step, str):  # "passthrough" and "drop"
        return False
    nothing = _LEARN_NOTHING.get(type(step).__name__)
    if nothing is not None and nothing(step):
        return False
    return bool(get_tags(step).requires_fit)
