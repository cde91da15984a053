"""Differentially private training that keeps sparse gradients sparse.

The public names are loaded when first used, so that the parts that need no torch (accounting, planning,
convex optimisation) start at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "PrivacyEngine": "sparsedp.training",
    "Private": "sparsedp.training",
    "UserSampler": "sparsedp.training",
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
    "plan": "sparsedp.planning",
}

_ROOMS = (
    "accounting",
    "audit",
    "clipping",
    "convex",
    "core",
    "data",
    "distributed",
    "mechanisms",
    "models",
    "planning",
    "randomness",
    "report",
    "rows",
    "runs",
    "selection",
    "training",
)

__all__ = [
    "DPSGD",
    "FEST",
    "AdaFEST",
    "ExponentialSelection",
    "Ledger",
    "NoiseSource",
    "PrivacyEngine",
    "PrivacyStatement",
    "Private",
    "RandomSelection",
    "SparseVectorSelection",
    "UserSampler",
    "__version__",
    "calibrate",
    "load",
    "plan",
]

if TYPE_CHECKING:
    from sparsedp.accounting import Ledger, PrivacyStatement, calibrate
    from sparsedp.planning import plan
    from sparsedp.randomness import NoiseSource
    from sparsedp.runs import TrainedModel
    from sparsedp.selection import (
        DPSGD,
        FEST,
        AdaFEST,
        ExponentialSelection,
        RandomSelection,
        SparseVectorSelection,
    )
    from sparsedp.training import PrivacyEngine, Private, UserSampler


def load(folder: str | Path, *, trust: bool = False, model: Callable[..., Any] | None = None) -> TrainedModel:
    """The model in the folder of a finished run, or in an exported one: `sparsedp.runs.load`, which needs extras."""
    loaded: TrainedModel = importlib.import_module("sparsedp.runs").load(folder, trust=trust, model=model)
    return loaded


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"sparsedp.{name}")
    raise AttributeError(f"module 'sparsedp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
