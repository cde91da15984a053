"""Accounting: events, privacy loss distributions, calibration, budgets and the statement of what was spent."""

from sparsedp.accounting.analytic_gaussian import (
    analytic_gaussian_delta,
    analytic_gaussian_epsilon,
    analytic_gaussian_sigma,
)
from sparsedp.accounting.budget import BudgetExceeded
from sparsedp.accounting.calibration import calibrate, delta_of, epsilon, epsilon_of, max_steps
from sparsedp.accounting.events import (
    BoundedRangeGaussianDpEvent,
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    Events,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    SparseVectorDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    ZCDpEvent,
)
from sparsedp.accounting.merge import merge_groups, merge_sigmas, split_sigma
from sparsedp.accounting.statement import PrivacyStatement

__all__ = [
    "BoundedRangeGaussianDpEvent",
    "BudgetExceeded",
    "ComposedDpEvent",
    "DiscreteLaplaceDpEvent",
    "DpEvent",
    "Events",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "MixtureOfGaussiansDpEvent",
    "NoOpDpEvent",
    "NonPrivateDpEvent",
    "PoissonSampledDpEvent",
    "PrivacyStatement",
    "PureDpEvent",
    "RandomizedResponseDpEvent",
    "RepeatAndSelectDpEvent",
    "SelfComposedDpEvent",
    "SparseVectorDpEvent",
    "TruncatedSubsampledGaussianDpEvent",
    "ZCDpEvent",
    "analytic_gaussian_delta",
    "analytic_gaussian_epsilon",
    "analytic_gaussian_sigma",
    "calibrate",
    "delta_of",
    "epsilon",
    "epsilon_of",
    "max_steps",
    "merge_groups",
    "merge_sigmas",
    "split_sigma",
]
