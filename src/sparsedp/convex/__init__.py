"""Mean estimation and convex optimisation with sparse gradients (SGO); function core, scikit-learn on top.

Nothing here needs torch, but for ``sparsedp.convex.torch_adapter``, which is imported by its own name.
"""

from sparsedp.convex import hard_instances, rates
from sparsedp.convex.bias_reduced_sgd import BiasReducedSGD
from sparsedp.convex.boosting import boost
from sparsedp.convex.domains import Ball, Box, Everywhere, Simplex
from sparsedp.convex.estimators import CompositionWarning, DataDependentWarning, FitDiagnostics
from sparsedp.convex.logistic import PrivateLogisticRegression
from sparsedp.convex.losses import LogisticLoss, SmoothedHingeLoss, SoftmaxLoss, SquaredLoss
from sparsedp.convex.mean import SparseMean, private_sparse_mean
from sparsedp.convex.noisy_descent import noisy_descent
from sparsedp.convex.objective_perturbation import objective_perturbation
from sparsedp.convex.output_perturbation import output_perturbation
from sparsedp.convex.partitioned_erm import PartitionedERM
from sparsedp.convex.private_minimiser import PrivateMinimiser
from sparsedp.convex.regularization import theorem_lambda
from sparsedp.convex.ridge import PrivateRidge
from sparsedp.convex.risk import FunctionRisk, LinearRisk, Regularity
from sparsedp.convex.sparse_exponential import SparseExponentialMechanism
from sparsedp.convex.svc import PrivateLinearSVC

__all__ = [
    "Ball",
    "BiasReducedSGD",
    "Box",
    "CompositionWarning",
    "DataDependentWarning",
    "Everywhere",
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
    "boost",
    "hard_instances",
    "noisy_descent",
    "objective_perturbation",
    "output_perturbation",
    "private_sparse_mean",
    "rates",
    "theorem_lambda",
]
