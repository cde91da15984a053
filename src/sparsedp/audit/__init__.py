"""Audits, and the controls that an audit must catch.

Names are loaded when first used: the distinguishing audit needs no torch, the controls do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsedp.core.extras import lazy_names

_HOME = {
    "AuditResult": "distinguishing",
    "CanaryRanks": "canaries",
    "ChiSquare": "canaries",
    "EANA": "eana",
    "RareIds": "canaries",
    "audit": "distinguishing",
    "epsilon_lower_bound": "distinguishing",
    "exact_epsilon": "distinguishing",
    "hockey_stick": "distinguishing",
    "OneRunResult": "coins",
    "flip_coins": "coins",
    "insert_phrases": "canaries",
    "language_model_log_perplexity": "canaries",
    "one_run": "coins",
    "random_phrases": "canaries",
    "rank_phrases": "canaries",
    "repeated": "distinguishing",
    "replay": "recording",
    "ReplayResult": "recording",
}

__all__ = [
    "EANA",
    "AuditResult",
    "CanaryRanks",
    "ChiSquare",
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
    from sparsedp.audit.recording import ReplayResult, replay

__getattr__ = lazy_names(__name__, _HOME)
