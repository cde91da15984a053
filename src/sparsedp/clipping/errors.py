"""Errors for modules whose per-example gradients cannot be computed."""

from __future__ import annotations

from torch import nn


class RuleError(ValueError):
    """Why a rule does not apply; it becomes an ``UnsupportedLayerError`` where the module's name is known."""


class UnsupportedLayerError(ValueError):
    """A module that cannot be trained privately as it is; the message names it and says what to do."""

    def __init__(self, name: str, module: nn.Module, reason: str) -> None:
        where = f"module {name!r}" if name else "module"
        super().__init__(f"{where} ({type(module).__name__}): {reason}")
