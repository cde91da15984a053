"""Mean estimation and convex optimisation with sparse gradients (SGO); function core, scikit-learn on top.

Nothing here needs torch, but for ``sparsedp.convex.sgd.torch_adapter``, which is imported by its own name.
"""

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
