"""Private ridge regression on a bounded domain."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.convex.clip import check_bound
from sparsedp.convex.erm.domains import Ball
from sparsedp.convex.erm.losses import SquaredLoss
from sparsedp.convex.erm.regularization import Goal
from sparsedp.convex.estimators.base import Mechanism, PrivateLinearModel
from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_positive


class PrivateRidge(RegressorMixin, PrivateLinearModel):  # type: ignore[misc]
    """Ridge regression with differential privacy, weights in a ball (SGO Algorithm 3 with the squared loss).

    The squared loss is Lipschitz on bounded weights, rows and targets only, so all three are bounded: weights
    (with the intercept) to norm ``radius``, rows to ``data_norm``, targets to ``target_bound``. With radius R,
    rows of norm B and targets within Y, L = (R B + Y) B.

    Parameters
    ----------
    epsilon, delta, adjacency, data_norm, sparsity, lam, goal, fit_intercept, intercept_scaling, seed :
        as in ``PrivateLogisticRegression``.
    radius : float, default=1.0
        The norm of the weights at most. Noise grows with it: scale targets and features by public constants so
        that one is enough.
    target_bound : float, default=1.0
        A public constant. Targets beyond it are moved to it.

    Guarantee: that of ``output_perturbation`` on a ball; unit one row; released ``coef_`` and ``intercept_``.
    """

    mechanism: Mechanism = "output"
    domain = None
    target_bound: float

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float | None = None,
        adjacency: str = REPLACE_ONE,
        data_norm: float = 1.0,
        sparsity: int | None = None,
        lam: float | None = None,
        radius: float = 1.0,
        target_bound: float = 1.0,
        goal: Goal = "empirical",
        fit_intercept: bool = True,
        intercept_scaling: float = 0.25,
        seed: int | None = None,
    ) -> None:
        self._set_parameters(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to the rows of ``X`` (dense or CSR, never densified) and the targets ``y``."""
        rows, targets = self._check_data(X, y)
        bound = check_positive("target_bound", self.target_bound)
        radius = check_positive("radius", self.radius)
        data_norm = check_bound("data_norm", self.data_norm)
        constant = check_positive("intercept_scaling", self.intercept_scaling) if self.fit_intercept else 0.0
        numbers = np.asarray(targets, dtype=np.float64)
        known = np.isfinite(numbers)
        if not known.any():
            raise ValueError("y must hold finite targets, got NaN or infinities only")
        loss = SquaredLoss(radius * math.hypot(data_norm, constant), bound)
        clipped = np.clip(np.where(known, numbers, 0.0), -bound, bound)
        self._fit_linear(rows, clipped, known, loss, domain=Ball(radius), slope_clip=None)
        broken = self.diagnostics_.broken_rows + int((~known).sum())
        self.diagnostics_ = replace(self.diagnostics_, broken_rows=broken)
        self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]
        return self

    def predict(self, X: ArrayLike) -> F64:
        """Inner products with the weights, rows shortened as in fit."""
        return self._margins(X)[:, 0]
