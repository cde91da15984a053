"""Which data sets are neighbours, and the budget between them."""

from __future__ import annotations

from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, REPLACE_ONE
from sparsedp.core.defaults import default_delta
from sparsedp.core.validation import check_delta


def check_adjacency(adjacency: str) -> str:
    """One of the two adjacencies."""
    if adjacency not in (REPLACE_ONE, ADD_OR_REMOVE_ONE):
        raise ValueError(f"adjacency must be {REPLACE_ONE!r} or {ADD_OR_REMOVE_ONE!r}, got {adjacency!r}")
    return adjacency


def changed_terms(adjacency: str) -> int:
    """How many examples' terms differ in a sum over neighbours: the old and the new one, or only one."""
    return 2 if check_adjacency(adjacency) == REPLACE_ONE else 1


def adjacency_notes(adjacency: str) -> tuple[str, ...]:
    """The notes that a statement needs besides the adjacency."""
    if adjacency == REPLACE_ONE:
        return ()
    return ("the number of examples is public: one that is removed leaves an empty one behind",)


def check_pure_or_delta(delta: float | None, n: int) -> float:
    """Zero for pure DP, else a delta; 1 / (10 n) where none is given."""
    if delta is None:
        return default_delta(n)
    return 0.0 if delta == 0 else check_delta(delta)
