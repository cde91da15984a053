"""Audits, and the controls that an audit must catch.

Names are loaded when first used: the distinguishing audit needs no torch, the controls do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsedp.core.extras import lazy_names

_HOME = {
    "AuditResult": "distinguishing",
    "CanaryData": "canary_run",
    "CanaryRanks": "canaries",
    "CanaryScores": "canary_run",
    "CanaryTraining": "canary_run",
    "Case": "case",
    "ChiSquare": "canaries",
    "Claim": "case",
    "EANA": "eana",
    "Finding": "case",
    "RareIds": "canaries",
    "audit": "distinguishing",
    "epsilon_lower_bound": "distinguishing",
    "exact_epsilon": "distinguishing",
    "hockey_stick": "distinguishing",
    "OneRunCase": "one_run_case",
    "OneRunResult": "coins",
    "flip_coins": "coins",
    "insert_phrases": "canaries",
    "language_model_log_perplexity": "canaries",
    "one_run": "coins",
    "random_phrases": "canaries",
    "rank_phrases": "canaries",
    "repeated": "distinguishing",
    "replay": "recording",
    "run_cases": "case",
    "ReplayResult": "recording",
}

__all__ = [
    "EANA",
    "AuditResult",
    "CanaryData",
    "CanaryRanks",
    "CanaryScores",
    "CanaryTraining",
    "Case",
    "ChiSquare",
    "Claim",
    "Finding",
    "OneRunCase",
    "OneRunResult",
    "RareIds",
    "ReplayResult",
    "audit",
    "epsilon_lower_bound",
    "exact_epsilon",
    "flip_coins",
    "hockey_stick",
    "insert_phrases",
    "language_model_log_perplexity",
    "one_run",
    "random_phrases",
    "rank_phrases",
    "repeated",
    "replay",
    "run_cases",
]

if TYPE_CHECKING:
    from sparsedp.audit.canaries import (
        CanaryRanks,
        ChiSquare,
        RareIds,
        insert_phrases,
        language_model_log_perplexity,
        random_phrases,
        rank_phrases,
    )
    from sparsedp.audit.canary_run import CanaryData, CanaryScores, CanaryTraining
    from sparsedp.audit.case import Case, Claim, Finding, run_cases
    from sparsedp.audit.coins import OneRunResult, flip_coins, one_run
    from sparsedp.audit.distinguishing import (
        AuditResult,
        audit,
        epsilon_lower_bound,
        exact_epsilon,
        hockey_stick,
        repeated,
    )
    from sparsedp.audit.eana import EANA
    from sparsedp.audit.one_run_case import OneRunCase
    from sparsedp.audit.recording import ReplayResult, replay

__getattr__ = lazy_names(__name__, _HOME)
