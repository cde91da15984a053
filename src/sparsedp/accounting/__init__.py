"""Accounting: events, their loss distributions, calibration, filters, ledgers and statements."""

from sparsedp.accounting.analytic_gaussian import (
    analytic_gaussian_delta,
    analytic_gaussian_epsilon,
    analytic_gaussian_sigma,
)
from sparsedp.accounting.budget import BudgetExceeded
from sparsedp.accounting.calibration import (
    LooseEpsilonWarning,
    calibrate,
    delta_of,
    epsilon,
    epsilon_of,
    max_steps,
)
from sparsedp.accounting.cap import EpsilonCap
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
    WorstOfDpEvent,
    ZCDpEvent,
)
from sparsedp.accounting.filters import AdaptiveFilter, Filter, GDPFilter, RenyiFilter, ZCDPFilter
from sparsedp.accounting.groups import (
    group_delta_of,
    group_epsilon_of,
    group_trade_off_curve,
    replace_one_delta_of,
    replace_one_epsilon_of,
)
from sparsedp.accounting.ledger import Ledger
from sparsedp.accounting.merge import merge_groups, merge_sigmas, split_sigma
from sparsedp.accounting.statement import PrivacyStatement
from sparsedp.accounting.trade_off import TradeOffCurve, mu_of, trade_off_curve
from sparsedp.accounting.users import user_statement, user_step_event, user_unit

__all__ = [
    "AdaptiveFilter",
    "BoundedRangeGaussianDpEvent",
    "BudgetExceeded",
    "ComposedDpEvent",
    "DiscreteLaplaceDpEvent",
    "DpEvent",
    "EpsilonCap",
    "Events",
    "Filter",
    "GDPFilter",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "Ledger",
    "LooseEpsilonWarning",
    "MixtureOfGaussiansDpEvent",
    "NoOpDpEvent",
    "NonPrivateDpEvent",
    "PoissonSampledDpEvent",
    "PrivacyStatement",
    "PureDpEvent",
    "RandomizedResponseDpEvent",
    "RenyiFilter",
    "RepeatAndSelectDpEvent",
    "SelfComposedDpEvent",
    "SparseVectorDpEvent",
    "TradeOffCurve",
    "TruncatedSubsampledGaussianDpEvent",
    "WorstOfDpEvent",
    "ZCDPFilter",
    "ZCDpEvent",
    "analytic_gaussian_delta",
    "analytic_gaussian_epsilon",
    "analytic_gaussian_sigma",
    "calibrate",
    "delta_of",
    "epsilon",
    "epsilon_of",
    "group_delta_of",
    "group_epsilon_of",
    "group_trade_off_curve",
    "max_steps",
    "merge_groups",
    "merge_sigmas",
    "mu_of",
    "replace_one_delta_of",
    "replace_one_epsilon_of",
    "split_sigma",
    "trade_off_curve",
    "user_statement",
    "user_step_event",
    "user_unit",
]
