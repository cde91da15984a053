"""Spies on what is handed down: the numbers that reach a sampler, beside those that were accounted for."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest


def spy(monkeypatch: pytest.MonkeyPatch, owner: ModuleType | type, name: str) -> list[dict[str, Any]]:
    """Every call of ``owner.name`` from now on: its arguments by name, and what it ``returned``."""
    original = getattr(owner, name)
    signature = inspect.signature(original)
    calls: list[dict[str, Any]] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        call = dict(bound.arguments)
        calls.append(call)
        call["returned"] = original(*arguments, **named)
        return call["returned"]

    monkeypatch.setattr(owner, name, watched)
    return calls
