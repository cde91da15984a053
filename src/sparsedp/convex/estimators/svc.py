"""A private linear support vector classifier."""

from __future__ import annotations

from numpy.typing import ArrayLike

from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.convex.erm.domains import Domain
from sparsedp.convex.erm.losses import MarginLoss, SmoothedHingeLoss, SoftmaxLoss
from sparsedp.convex.erm.regularization import Goal
from sparsedp.convex.estimators.base import Mechanism, PrivateLinearClassifier


class PrivateLinearSVC(PrivateLinearClassifier):
    """A linear support vector classifier with differential privacy, its hinge rounded over ``smoothing``.

    All parameters but ``smoothing``, the attributes and the guarantee are those of
    ``PrivateLogisticRegression``. More than two classes: the rounded hinge of Crammer and Singer, jointly.

    Parameters
    ----------
    smoothing : float, default=0.5
        Over how much margin the corner of the hinge is rounded. Less is closer to the hinge, and more curved:
        pure DP and short steps then cost more.
    """

    smoothing: float

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
        smoothing: float = 0.5,
        seed: int | None = None,
    ) -> None:
        self._set_parameters(locals())

    def _loss(self, classes: int) -> MarginLoss:
        if classes == 2:
            return SmoothedHingeLoss(self.smoothing)
        return SoftmaxLoss(classes, margin=1.0, smoothing=self.smoothing)
