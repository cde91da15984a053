"""Private logistic regression."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.convex.erm.domains import Domain
from sparsedp.convex.erm.losses import LogisticLoss, MarginLoss, SoftmaxLoss
from sparsedp.convex.erm.regularization import Goal
from sparsedp.convex.estimators.base import Mechanism, PrivateLinearClassifier
from sparsedp.core.arrays import F64


class PrivateLogisticRegression(PrivateLinearClassifier):
    """Logistic regression with differential privacy; two classes or many; dense or CSR rows.

    Parameters
    ----------
    epsilon : float, default=1.0
        The budget of one fit.
    classes : array of labels or None, default=None
        All labels that there may be: public, like epsilon. A row with another label counts as an empty one. ``None``
        reads them from ``y``, which reveals a label that only one row has: a warning, and a note in ``statement_``.
    delta : float or None, default=None
        ``None`` means 1 / (10 n); 0 requests pure DP.
    mechanism : {"auto", "output", "objective", "descent"}, default="auto"
        ``"output"``: noise on the regularised minimiser, then the l_inf-nearest point of the domain (SGO
        Algorithm 3). ``"objective"``: noise in the objective. ``"descent"``: noisy full-batch gradients (needs
        delta > 0). ``"auto"``: output if a domain is given, objective for pure DP or a given ``lam``, else
        descent; see ``benchmarks/logistic.py`` for what each is worth.
    adjacency : {"replace-one", "add-or-remove-one"}, default="replace-one"
        Which data sets are neighbours. The number of rows is public either way.
    data_norm : float, default=1.0
        A public constant, never taken from the data. Longer rows are shortened to it, in fit and in predict.
        Scale features by public constants (or normalise rows) so that most rows are about this long.
    sparsity : int or None, default=None
        How many non-zeros a row is expected to have. It sets the theorem's ``lam``, and in pure DP the l1 norm
        ``data_norm sqrt(sparsity)`` that rows are shortened to. ``None``: the number of features.
    lam : float or None, default=None
        Regularisation; must be positive. ``None``: from the theorem (output) or from the noise (objective).
    radius : float, default=10.0
        D in the theorem's ``lam``: a bound on the norm of good weights.
    domain : Box, Ball, Simplex or None, default=None
        Where the weights may lie (output only).
    goal : {"empirical", "population"}, default="empirical"
        Which risk the theorem's ``lam`` is for.
    fit_intercept : bool, default=True
        Adds a constant feature of value ``intercept_scaling``, regularised like the others.
    intercept_scaling : float, default=0.25
        A larger constant frees the intercept and adds a little noise.
    steepest : float, default=0.5
        Two classes: the slope at which the logistic loss continues as a line. 1 is the plain loss, twice the noise.
    seed : int or None, default=None
        For tests and demonstrations: the result is then reproducible, and NOT private.

    Attributes
    ----------
    coef_, intercept_, classes_, n_features_in_ : as in scikit-learn.
    statement_ : PrivacyStatement
        What was spent, on whom, and on what release. It speaks of one fit.
    lam_ : float or None
        The regularisation used.
    noise_scale_ : float
        The scale of the noise on what was perturbed.
    diagnostics_ : FitDiagnostics
        How many rows were clipped, not finite or of an unknown label. NOT private.

    Guarantee: see the mechanism, in ``output_perturbation``, ``objective_perturbation``, ``noisy_descent``: unit
    one row, released ``coef_`` and ``intercept_``. The set of labels and the shape of X are public. A row with a
    NaN or an infinity counts as an empty one. What earlier steps of a pipeline learn from the data (scalers,
    TF-IDF) is not covered: it is warned about.
    For more than two classes all margins have one joint loss with gradients of norm sqrt(2) |x|, so noise does
    not grow with the number of classes and epsilon is not split.
    """

    steepest: float

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        classes: ArrayLike | None = None,
        delta: float | None = None,
        mechanism: Mechanism = "auto",
        adjacency: str = REPLACE_ONE,
        data_norm: float = 1.0,
        sparsity: int | None = None,
        lam: float | None = None,
        radius: float = 10.0,
        domain: Domain | None = None,
        goal: Goal = "empirical",
        fit_intercept: bool = True,
        intercept_scaling: float = 0.25,
        steepest: float = 0.5,
        seed: int | None = None,
    ) -> None:
        self._set_parameters(locals())

    def _loss(self, classes: int) -> MarginLoss:
        return LogisticLoss(self.steepest) if classes == 2 else SoftmaxLoss(classes)

    def predict_proba(self, X: ArrayLike) -> F64:
        """The probability of every class."""
        margins = self._margins(X)
        if self.classes_.size > 2:
            return np.asarray(softmax(margins, axis=1))
        second = LogisticLoss(self.steepest).probability(margins[:, 0])
        return np.column_stack([1.0 - second, second])

    def predict_log_proba(self, X: ArrayLike) -> F64:
        """Logarithms of ``predict_proba``."""
        return np.asarray(np.log(self.predict_proba(X)))
