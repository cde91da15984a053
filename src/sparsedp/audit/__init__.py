"""Audits, and the controls that an audit must catch.

Names are loaded when first used: the distinguishing audit needs no torch, the controls do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsedp.core.extras import lazy_names

_HOME = {
    "AuditResult": "distinguishing",
    "EANA": "eana",
    "audit": "distinguishing",
    "epsilon_lower_bound": "distinguishing",
    "exact_epsilon": "distinguishing",
    "hockey_stick": "distinguishing",
    "repeated": "distinguishing",
}

__all__ = [
    "EANA",
    "AuditResult",
    "audit",
    "epsilon_lower_bound",
    "exact_epsilon",
    "hockey_stick",
    "repeated",
]

if TYPE_CHECKING:
    from sparsedp.audit.distinguishing import (
        AuditResult,
        audit,
        epsilon_lower_bound,
        exact_epsilon,
        hockey_stick,
        repeated,
    )
    from sparsedp.audit.eana import EANA

__getattr__ = lazy_names(__name__, _HOME)
