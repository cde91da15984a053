"""Differentially private training that keeps sparse gradients sparse.

The public names are loaded when first used, so that the parts that need no torch (accounting, planning,
convex optimisation) start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "PrivacyEngine": "sparsedp.training",
    "Private": "sparsedp.training",
    "DPSGD": "sparsedp.selection",
    "FEST": "sparsedp.selection",
    "AdaFEST": "sparsedp.selection",
    "ExponentialSelection": "sparsedp.selection",
    "SparseVectorSelection": "sparsedp.selection",
    "RandomSelection": "sparsedp.selection",
    "NoiseSource": "sparsedp.randomness",
    "PrivacyStatement": "sparsedp.accounting",
    "Ledger": "sparsedp.accounting",
    "calibrate": "sparsedp.accounting",
    "plan": "sparsedp.accounting",
}

__all__ = ["__version__", *_HOME]

if TYPE_CHECKING:
    from sparsedp.accounting import Ledger, PrivacyStatement, calibrate, plan
    from sparsedp.randomness import NoiseSource
    from sparsedp.selection import (
        DPSGD,
        FEST,
        AdaFEST,
        ExponentialSelection,
        RandomSelection,
        SparseVectorSelection,
    )
    from sparsedp.training import Private, PrivacyEngine


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sparsedp' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
