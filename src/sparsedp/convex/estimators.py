"""What the private scikit-learn estimators share: parameters, clipping, the choice of a mechanism, the warning."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from sparsedp.accounting.validation import check_count, check_positive
from sparsedp.convex.clip import Rows, as_rows, clip_rows
from sparsedp.convex.domains import Domain
from sparsedp.convex.losses import MarginLoss
from sparsedp.convex.neighbours import check_pure_or_delta
from sparsedp.convex.noisy_descent import noisy_descent
from sparsedp.convex.objective_perturbation import objective_perturbation
from sparsedp.convex.output_perturbation import output_perturbation
from sparsedp.convex.private_minimiser import PrivateMinimiser
from sparsedp.convex.regularization import Goal, check_lambda
from sparsedp.convex.risk import LinearRisk
from sparsedp.mechanisms.histogram import Floats
from sparsedp.randomness import NoiseSource

Mechanism = Literal["auto", "output", "objective", "descent"]
_MECHANISMS = ("auto", "output", "objective", "descent")


class CompositionWarning(UserWarning):
    """More than one private fit was made from one estimator: their costs add up."""


class _Fits:
    """How many fits an estimator and its clones have made together."""

    def __init__(self) -> None:
        self.count = 0


class PrivateLinearModel(BaseEstimator):  # type: ignore[misc]
    """The part of a private linear model that does not depend on its loss."""

    epsilon: float
    delta: float | None
    mechanism: Mechanism
    adjacency: str
    data_norm: float
    sparsity: int | None
    lam: float | None
    radius: float
    domain: Domain | None
    goal: Goal
    fit_intercept: bool
    intercept_scaling: float
    seed: int | None

    def _keep(self, parameters: dict[str, Any]) -> None:
        """Every parameter of ``__init__`` under its own name and as it was given, as scikit-learn asks."""
        for name in self._get_param_names():
            setattr(self, name, parameters[name])

    def __sklearn_clone__(self) -> Self:
        # cross_val_score and searches fit clones, so clones share one count.
        clone: Self = super().__sklearn_clone__()
        clone._fits = self._count_of_fits()
        return clone

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.seed is None
        return tags

    def _count_of_fits(self) -> _Fits:
        fits: _Fits = self.__dict__.setdefault("_fits", _Fits())
        return fits

    def _count_fit(self) -> None:
        fits = self._count_of_fits()
        fits.count += 1
        if fits.count > 1:
            warnings.warn(
                f"{type(self).__name__} and its clones have now made {fits.count} private fits. Each spends its own "
                f"epsilon on the rows it saw, and statement_ speaks of one fit alone: whoever uses several, or "
                f"chooses among them (cross-validation, a search), spends up to {fits.count} times as much.",
                CompositionWarning,
                stacklevel=4,
            )

    def _shortened(self, rows: Rows, *, pure: bool) -> Rows:
        """Rows of norm ``data_norm`` at most, in pure DP also of l1 norm ``data_norm sqrt(sparsity)``."""
        data_norm = check_positive("data_norm", self.data_norm)
        return clip_rows(rows, l2=data_norm, l1=data_norm * self._root_sparsity(rows) if pure else math.inf)

    def _features(self, rows: Rows, *, pure: bool) -> Rows:
        """Shortened rows with the constant feature."""
        clipped = self._shortened(rows, pure=pure)
        if not self.fit_intercept:
            return clipped
        constant = np.full((clipped.shape[0], 1), check_positive("intercept_scaling", self.intercept_scaling))
        if isinstance(clipped, np.ndarray):
            return np.hstack([clipped, constant])
        return sparse.csr_array(sparse.hstack([clipped, sparse.csr_array(constant)]))

    def _root_sparsity(self, rows: Rows) -> float:
        d = int(rows.shape[1])
        if self.sparsity is None:
            return math.sqrt(d)
        if check_count("sparsity", self.sparsity) > d:
            raise ValueError(f"sparsity must be at most the number of features {d}, got {self.sparsity}")
        return math.sqrt(self.sparsity)

    def _fit_linear(
        self,
        rows: Rows,
        targets: Floats,
        loss: MarginLoss,
        *,
        domain: Domain | None,
        slope_clip: float | None,
    ) -> None:
        """Fit and set ``coef_`` (outputs by features), ``intercept_``, ``statement_``, ``lam_``, ``noise_scale_``."""
        n, d = rows.shape
        delta = check_pure_or_delta(self.delta, n)
        constant = self.intercept_scaling if self.fit_intercept else 0.0
        features = self._features(rows, pure=delta == 0.0)
        risk = LinearRisk(
            rows=features,
            targets=targets,
            loss=loss,
            row_l2=math.hypot(self.data_norm, constant),
            row_l1=self.data_norm * self._root_sparsity(rows) + constant,
        )
        fitted = self._minimise(risk, delta, domain, slope_clip)
        weights = fitted.x.reshape(-1, loss.outputs)
        self.coef_ = np.ascontiguousarray(weights[:d].T)
        self.intercept_ = weights[d] * constant if self.fit_intercept else np.zeros(loss.outputs)
        self.statement_ = fitted.statement
        self.lam_ = fitted.lam
        self.noise_scale_ = fitted.noise_scale
        self._count_fit()

    def _minimise(
        self, risk: LinearRisk, delta: float, domain: Domain | None, slope_clip: float | None
    ) -> PrivateMinimiser:
        mechanism = self._mechanism(delta, domain)
        source = NoiseSource(self.seed)
        common: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": delta,
            "adjacency": self.adjacency,
            "source": source,
        }
        if mechanism == "descent":
            return noisy_descent(risk, slope_clip=slope_clip, **common)
        if mechanism == "objective":
            return objective_perturbation(risk, lam=self.lam, **common)
        radius = check_positive("radius", self.radius)
        return output_perturbation(
            risk, lam=self.lam, domain=domain, diameter=radius, goal=self.goal, **common
        )

    def _mechanism(self, delta: float, domain: Domain | None) -> str:
        """The mechanism asked for, or for ``auto`` the one that errs least among those that can do it."""
        if self.mechanism not in _MECHANISMS:
            raise ValueError(f"mechanism must be one of {', '.join(_MECHANISMS)}, got {self.mechanism!r}")
        if self.lam is not None:
            check_lambda(self.lam)
        if self.mechanism == "auto":
            if domain is not None:
                return "output"
            return "objective" if delta == 0.0 or self.lam is not None else "descent"
        if domain is not None and self.mechanism != "output":
            raise ValueError(f"domain is for mechanism 'output', got mechanism {self.mechanism!r}")
        if self.mechanism == "descent" and (delta == 0.0 or self.lam is not None):
            raise ValueError("mechanism 'descent' needs delta > 0 and has no lam")
        return self.mechanism

    def _margins(self, X: ArrayLike) -> Floats:
        """One margin an output, for rows shortened as they were in fit."""
        check_is_fitted(self)
        rows: Rows = as_rows(validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False))
        clipped: Any = self._shortened(rows, pure=self.statement_.delta == 0.0)
        return np.asarray(clipped @ np.atleast_2d(self.coef_).T + self.intercept_)


class PrivateLinearClassifier(ClassifierMixin, PrivateLinearModel):  # type: ignore[misc]
    """A private linear classifier of two classes (one margin) or more (one joint loss over all margins)."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on the few hundred rows of a check, noise may win
        return tags

    def _loss(self, classes: int) -> MarginLoss:
        raise NotImplementedError

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to the rows of ``X`` (dense or CSR, never densified) and the labels ``y``."""
        checked, labels = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, indices = np.unique(labels, return_inverse=True)
        classes = self.classes_.size
        if classes < 2:
            raise ValueError(f"y must hold at least two classes, got one class: {self.classes_[0]!r}")
        targets = np.where(indices == 1, 1.0, -1.0) if classes == 2 else indices.astype(np.float64)
        # A softmax's slopes are sqrt(2) long at worst and about 1 where noise leaves little to learn.
        clip = None if classes == 2 else 1.0
        self._fit_linear(as_rows(checked), targets, self._loss(classes), domain=self.domain, slope_clip=clip)
        notes = (*self.statement_.notes, "the set of labels is taken as public")
        self.statement_ = replace(self.statement_, notes=notes)
        return self

    def decision_function(self, X: ArrayLike) -> Floats:
        """Margins: of the second class for two classes, else one a class."""
        margins = self._margins(X)
        return margins[:, 0] if self.classes_.size == 2 else margins

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the largest margin."""
        margins = self.decision_function(X)
        chosen = (margins > 0).astype(np.int64) if margins.ndim == 1 else margins.argmax(axis=1)
        return np.asarray(self.classes_[chosen])
