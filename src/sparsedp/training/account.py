"""What one run has spent, and the conditions that its statement must name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsedp.accounting.event_json import event_from_json, event_to_json
from sparsedp.accounting.events import DpEvent
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, ZERO_OUT

FINAL_MODEL_ONLY = "the final model only"
EVERY_STEP = "the model after every step"


@dataclass(frozen=True)
class Account:
    """The events of a run with their counts, and the conditions under which they hold.

    An engine keeps the account of every run it made, also of runs that have ended: what was released on a data
    set stays released.
    """

    events: tuple[tuple[DpEvent, int], ...]
    faults: tuple[str, ...] = ()
    """Why no epsilon holds; empty for a private run."""
    notes: tuple[str, ...] = ()
    final_model_only: bool = False
    adjacency: str = ADD_OR_REMOVE_ONE
    unit: str = "example"

    def state_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "events": [[event_to_json(event), count] for event, count in self.events],
            "faults": list(self.faults),
            "notes": list(self.notes),
            "final_model_only": self.final_model_only,
            "adjacency": self.adjacency,
            "unit": self.unit,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Account:
        """The reverse."""
        return cls(
            tuple((event_from_json(event), int(count)) for event, count in state["events"]),
            tuple(state["faults"]),
            tuple(state["notes"]),
            bool(state["final_model_only"]),
            state["adjacency"],
            state["unit"],
        )


def merge_accounts(accounts: Sequence[Account]) -> Account:
    """Several runs on the same data as one account; a fault of one run is a fault of the merged account.

    Zeroing out a record changes a Poisson run no more than removing it, so if one run is stated for zero-out,
    zero-out holds for all. Costs of different units do not add up: such accounts are refused.
    """
    units = {account.unit for account in accounts}
    if len(units) > 1:
        raise ValueError(f"unit: costs of different units do not add up: {', '.join(sorted(units))}")
    return Account(
        tuple(spent for account in accounts for spent in account.events),
        tuple(dict.fromkeys(fault for account in accounts for fault in account.faults)),
        tuple(dict.fromkeys(note for account in accounts for note in account.notes)),
        all(account.final_model_only for account in accounts),
        ZERO_OUT if any(account.adjacency == ZERO_OUT for account in accounts) else ADD_OR_REMOVE_ONE,
        units.pop() if units else "example",
    )


def released(accounts: Sequence[Account]) -> str:
    """What may be released."""
    if all(account.final_model_only for account in accounts):
        return FINAL_MODEL_ONLY
    if any(account.final_model_only for account in accounts):
        return f"{EVERY_STEP}; of runs with lazy noise {FINAL_MODEL_ONLY}"
    return EVERY_STEP
