"""What the private scikit-learn estimators share: parameters, clipping, the choice of a mechanism, the warning."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from sparsedp.convex.clip import (
    Rows,
    as_rows,
    check_bound,
    clip_rows,
    row_norms,
    zero_broken_rows,
    zero_other_rows,
)
from sparsedp.convex.erm.domains import Domain
from sparsedp.convex.erm.losses import MarginLoss
from sparsedp.convex.erm.noisy_descent import noisy_descent
from sparsedp.convex.erm.objective_perturbation import objective_perturbation
from sparsedp.convex.erm.output_perturbation import output_perturbation
from sparsedp.convex.erm.private_minimiser import PrivateMinimiser
from sparsedp.convex.erm.regularization import Goal, check_lambda
from sparsedp.convex.erm.risk import LinearRisk
from sparsedp.convex.estimators.preprocessing import learning_steps
from sparsedp.convex.neighbours import check_pure_or_delta
from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_count, check_positive
from sparsedp.randomness import NoiseSource

Mechanism = Literal["auto", "output", "objective", "descent"]
_MECHANISMS = ("auto", "output", "objective", "descent")


class CompositionWarning(UserWarning):
    """More than one private fit was made, or prepared, from one estimator: their costs add up."""


class DataDependentWarning(UserWarning):
    """Something was learnt from the data outside the mechanism, and epsilon does not cover it."""


@dataclass(frozen=True)
class FitDiagnostics:
    """What was done to the data. NOT private: for the curator's eyes, never to be released.

    ``clipped_rows`` were longer than the public bounds. ``broken_rows`` had a NaN or an infinity, in the row or
    its target, and ``unknown_labels`` were not in ``classes``: all these count as examples without a gradient.
    """

    clipped_rows: int
    broken_rows: int
    unknown_labels: int = 0


class _Fits:
    """How many fits an estimator and its clones have made together, or were sent to make elsewhere."""

    def __init__(self, count: int = 0) -> None:
        self.count = count


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

    def _set_parameters(self, parameters: dict[str, Any]) -> None:
        """Set every parameter of ``__init__`` as an attribute of the same name, unchanged, as scikit-learn requires."""
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
        tags.input_tags.allow_nan = True  # in fit, where a refusal would tell that such a row is there
        tags.non_deterministic = self.seed is None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        # Jobs in other processes fit copies that are pickled unfitted; their fits are counted when they leave.
        state: dict[str, Any] = super().__getstate__()
        if hasattr(self, "coef_"):
            return state
        before = self._count_of_fits().count
        self._count_fit("have been sent to other processes for, or made,")
        return {**state, "_fits": _Fits(before)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        fits = self._count_of_fits()
        twin.__dict__.update(copy.deepcopy({k: v for k, v in vars(self).items() if v is not fits}, memo))
        twin._fits = fits
        return twin

    def _count_of_fits(self) -> _Fits:
        fits: _Fits = self.__dict__.setdefault("_fits", _Fits())
        return fits

    def _count_fit(self, done: str = "have now made") -> None:
        fits = self._count_of_fits()
        fits.count += 1
        if fits.count > 1:
            warnings.warn(
                f"{type(self).__name__} and its clones {done} {fits.count} private fits. Each spends its own "
                f"epsilon on the rows it saw, and statement_ speaks of one fit alone: whoever uses several, or "
                f"chooses among them (cross-validation, a search), spends up to {fits.count} times as much.",
                CompositionWarning,
                stacklevel=4,
            )

    def _check_preprocessing(self) -> tuple[str, ...]:
        """Warn where the steps before this one in a pipeline learn from the data; a note for the statement."""
        steps = learning_steps(self)
        if not steps:
            return ()
        names = ", ".join(dict.fromkeys(steps))
        warnings.warn(
            f"{names} before {type(self).__name__} learns from the data without noise: epsilon does not cover it. Use "
            "steps that learn nothing (Normalizer, HashingVectorizer, public constants), or fit them to public data "
            "and wrap them in sklearn.frozen.FrozenEstimator.",
            DataDependentWarning,
            stacklevel=4,
        )
        return (f"not covered: what {names} learnt from the data before",)

    def _shortened(self, rows: Rows, *, pure: bool) -> Rows:
        """Rows of norm ``data_norm`` at most, in pure DP also of l1 norm ``data_norm sqrt(sparsity)``."""
        data_norm = check_bound("data_norm", self.data_norm)
        return clip_rows(rows, l2=data_norm, l1=data_norm * self._root_sparsity(rows) if pure else math.inf)

    def _features(self, rows: Rows, known: NDArray[np.bool_], *, pure: bool) -> Rows:
        """Shortened rows with the constant feature; all zero where an example is not ``known``."""
        clipped = zero_other_rows(self._shortened(rows, pure=pure), known)
        if not self.fit_intercept:
            return clipped
        constant = np.where(known, check_positive("intercept_scaling", self.intercept_scaling), 0.0)[:, None]
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

    def _check_data(self, X: ArrayLike, y: ArrayLike | None) -> tuple[Rows, NDArray[Any]]:
        """Rows and targets of one length; the numbers in them need not be finite."""
        checked = validate_data(self, X, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        targets = column_or_1d(y, warn=True)
        check_consistent_length(checked, targets)
        return as_rows(checked), targets

    def _fit_linear(
        self,
        rows: Rows,
        targets: F64,
        known: NDArray[np.bool_],
        loss: MarginLoss,
        *,
        domain: Domain | None,
        slope_clip: float | None,
    ) -> None:
        """Fit and set ``coef_`` (outputs by features), ``intercept_``, ``statement_``, ``diagnostics_`` and the rest.

        Examples that are not ``known``, or not finite, count as zero.
        """
        n, d = rows.shape
        delta = check_pure_or_delta(self.delta, n)
        constant = self.intercept_scaling if self.fit_intercept else 0.0
        finite, broken = zero_broken_rows(rows)
        features = self._features(finite, known & ~broken, pure=delta == 0.0)
        risk = LinearRisk(
            rows=features,
            targets=targets,
            loss=loss,
            row_l2=math.hypot(self.data_norm, constant),
            row_l1=self.data_norm * self._root_sparsity(rows) + constant,
        )
        notes = self._check_preprocessing()
        fitted = self._minimise(risk, delta, domain, slope_clip)
        weights = fitted.x.reshape(-1, loss.outputs)
        self.coef_ = np.ascontiguousarray(weights[:d].T)
        self.intercept_ = weights[d] * constant if self.fit_intercept else np.zeros(loss.outputs)
        self.statement_ = replace(fitted.statement, notes=(*fitted.statement.notes, *notes))
        self.lam_ = fitted.lam
        self.noise_scale_ = fitted.noise_scale
        self.diagnostics_ = FitDiagnostics(self._count_long(finite, pure=delta == 0.0), int(broken.sum()))
        self._count_fit()

    def _count_long(self, rows: Rows, *, pure: bool) -> int:
        long = row_norms(rows, 2) > self.data_norm
        if pure:
            long |= row_norms(rows, 1) > self.data_norm * self._root_sparsity(rows)
        return int(long.sum())

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
        """The requested mechanism, or for ``auto`` the applicable one with the least error."""
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

    def _margins(self, X: ArrayLike) -> F64:
        """One margin an output, for rows shortened as they were in fit; the intercept for one that is not finite."""
        check_is_fitted(self)
        checked = validate_data(
            self, X, accept_sparse="csr", dtype=np.float64, reset=False, ensure_all_finite=False
        )
        rows, _ = zero_broken_rows(as_rows(checked))
        clipped: Any = self._shortened(rows, pure=self.statement_.delta == 0.0)
        return np.asarray(clipped @ np.atleast_2d(self.coef_).T + self.intercept_)


class PrivateLinearClassifier(ClassifierMixin, PrivateLinearModel):  # type: ignore[misc]
    """A private linear classifier of two classes (one margin) or more (one joint loss over all margins)."""

    classes: ArrayLike | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on the few hundred rows of a check, noise may win
        return tags

    def _loss(self, classes: int) -> MarginLoss:
        raise NotImplementedError

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to the rows of ``X`` (dense or CSR, never densified) and the labels ``y``."""
        rows, labels = self._check_data(X, y)
        self.classes_, note = self._public_classes(labels)
        indices, known = _places(labels, self.classes_)
        classes = self.classes_.size
        targets = np.where(indices == 1, 1.0, -1.0) if classes == 2 else indices.astype(np.float64)
        # A softmax's slopes are sqrt(2) long at worst and about 1 where noise leaves little to learn.
        clip = None if classes == 2 else 1.0
        self._fit_linear(rows, targets, known, self._loss(classes), domain=self.domain, slope_clip=clip)
        unknown = int((~known).sum())
        self.statement_ = replace(self.statement_, notes=(*self.statement_.notes, note))
        self.diagnostics_ = replace(self.diagnostics_, unknown_labels=unknown)
        if unknown:
            warnings.warn(
                f"{unknown} labels are not in classes: they counted as empty examples. This message and diagnostics_ "
                "depend on the data: keep them with the data.",
                UserWarning,
                stacklevel=2,
            )
        return self

    def _public_classes(self, labels: NDArray[Any]) -> tuple[NDArray[Any], str]:
        """The classes, sorted, and what the statement says of them."""
        if self.classes is not None:
            classes = np.unique(column_or_1d(self.classes))
            if classes.size < 2:
                raise ValueError(f"classes must hold at least two classes, got {classes.size}")
            return classes, "the set of labels was given as classes and is public"
        check_classification_targets(labels)
        labels_found = np.unique(labels)
        if labels_found.size < 2:
            raise ValueError(f"y must hold at least two classes, got one class: {labels_found[0]!r}")
        warnings.warn(
            "classes was not given: the set of labels is read from y, so a label that only one row has is revealed by "
            "classes_. Give all labels that there may be as classes=.",
            DataDependentWarning,
            stacklevel=3,
        )
        return labels_found, "not covered: the set of labels was read from the data"

    def decision_function(self, X: ArrayLike) -> F64:
        """Margins: of the second class for two classes, else one a class."""
        margins = self._margins(X)
        return margins[:, 0] if self.classes_.size == 2 else margins

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class with the largest margin."""
        margins = self.decision_function(X)
        chosen = (margins > 0).astype(np.int64) if margins.ndim == 1 else margins.argmax(axis=1)
        return np.asarray(self.classes_[chosen])


def _places(labels: NDArray[Any], classes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The index of each label among the sorted classes (0 for unknown labels), and which labels are known."""
    if (labels.dtype.kind in "biuf") != (classes.dtype.kind in "biuf"):
        raise ValueError(
            f"classes must be of the kind of y, got {classes.dtype} for labels of {labels.dtype}"
        )
    indices = np.minimum(np.searchsorted(classes, labels), classes.size - 1)
    known = np.asarray(classes[indices] == labels)
    return np.where(known, indices, 0), known
