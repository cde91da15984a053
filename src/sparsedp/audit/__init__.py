"""Audits, and the controls that an audit must catch.

Names are loaded when first used: the distinguishing audit needs no torch, the controls do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "AuditResult": "sparsedp.audit.distinguishing",
    "EANA": "sparsedp.audit.eana",
    "audit": "sparsedp.audit.distinguishing",
    "epsilon_lower_bound": "sparsedp.audit.distinguishing",
    "exact_epsilon": "sparsedp.audit.distinguishing",
    "hockey_stick": "sparsedp.audit.distinguishing",
    "repeated": "sparsedp.audit.distinguishing",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sparsedp.audit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
