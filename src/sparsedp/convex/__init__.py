"""Mean estimation and convex optimisation with sparse gradients (SGO); function core, scikit-learn on top.

Nothing here needs torch, but for ``sparsedp.convex.sgd.torch_adapter``, which is imported by its own name. The
names are loaded when first used: only the estimators need scikit-learn, only l1-recovery needs spgl1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsedp.core.extras import lazy_names

_HOME = {
    "Ball": "erm.domains",
    "BiasReducedSGD": "sgd.bias_reduced_sgd",
    "Box": "erm.domains",
    "CompositionWarning": "estimators.base",
    "DataDependentWarning": "estimators.base",
    "FitDiagnostics": "estimators.base",
    "FunctionRisk": "erm.risk",
    "LinearRisk": "erm.risk",
    "LogisticLoss": "erm.losses",
    "PartitionedERM": "sgd.partitioned_erm",
    "PrivateLinearSVC": "estimators.svc",
    "PrivateLogisticRegression": "estimators.logistic",
    "PrivateMinimiser": "erm.private_minimiser",
    "PrivateRidge": "estimators.ridge",
    "Regularity": "erm.risk",
    "Simplex": "erm.domains",
    "SmoothedHingeLoss": "erm.losses",
    "SoftmaxLoss": "erm.losses",
    "SparseExponentialMechanism": "erm.sparse_exponential",
    "SparseMean": "mean.sparse_mean",
    "SquaredLoss": "erm.losses",
    "Unconstrained": "erm.domains",
    "boost": "sgd.boosting",
    "hard_instances": "theory",
    "noisy_descent": "erm.noisy_descent",
    "objective_perturbation": "erm.objective_perturbation",
    "output_perturbation": "erm.output_perturbation",
    "private_sparse_mean": "mean.sparse_mean",
    "rates": "theory",
    "theorem_lambda": "erm.regularization",
}

__all__ = [
    "Ball",
    "BiasReducedSGD",
    "Box",
    "CompositionWarning",
    "DataDependentWarning",
    "FitDiagnostics",
    "FunctionRisk",
    "LinearRisk",
    "LogisticLoss",
    "PartitionedERM",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateMinimiser",
    "PrivateRidge",
    "Regularity",
    "Simplex",
    "SmoothedHingeLoss",
    "SoftmaxLoss",
    "SparseExponentialMechanism",
    "SparseMean",
    "SquaredLoss",
    "Unconstrained",
    "boost",
    "hard_instances",
    "noisy_descent",
    "objective_perturbation",
    "output_perturbation",
    "private_sparse_mean",
    "rates",
    "theorem_lambda",
]

if TYPE_CHECKING:
    from sparsedp.convex.erm.domains import Ball, Box, Simplex, Unconstrained
    from sparsedp.convex.erm.losses import LogisticLoss, SmoothedHingeLoss, SoftmaxLoss, SquaredLoss
    from sparsedp.convex.erm.noisy_descent import noisy_descent
    from sparsedp.convex.erm.objective_perturbation import objective_perturbation
    from sparsedp.convex.erm.output_perturbation import output_perturbation
    from sparsedp.convex.erm.private_minimiser import PrivateMinimiser
    from sparsedp.convex.erm.regularization import theorem_lambda
    from sparsedp.convex.erm.risk import FunctionRisk, LinearRisk, Regularity
    from sparsedp.convex.erm.sparse_exponential import SparseExponentialMechanism
    from sparsedp.convex.estimators.base import CompositionWarning, DataDependentWarning, FitDiagnostics
    from sparsedp.convex.estimators.logistic import PrivateLogisticRegression
    from sparsedp.convex.estimators.ridge import PrivateRidge
    from sparsedp.convex.estimators.svc import PrivateLinearSVC
    from sparsedp.convex.mean.sparse_mean import SparseMean, private_sparse_mean
    from sparsedp.convex.sgd.bias_reduced_sgd import BiasReducedSGD
    from sparsedp.convex.sgd.boosting import boost
    from sparsedp.convex.sgd.partitioned_erm import PartitionedERM
    from sparsedp.convex.theory import hard_instances, rates

__getattr__ = lazy_names(__name__, _HOME)
