"""A run's epsilon as a cap: the step that would exceed it is refused, also after crashes."""

from __future__ import annotations

from sparsedp.accounting.budget import BudgetExceeded
from sparsedp.accounting.budget_cache import BudgetCache
from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.events import DpEvent, Events
from sparsedp.accounting.pld.composition import tolerance
from sparsedp.core.validation import check_count, check_delta, check_epsilon


class EpsilonCap:
    """The most that a run may spend in all: `target_epsilon` at `target_delta`.

    Guarantee: if every release of a run was admitted by `require` before it was made, or entered with this
    cap on a ledger (`Ledger.spend`, `Ledger.step_reserver`), then `epsilon_of` everything charged to the run is
    at most `target_epsilon`, after any number of crashes and resumes; on a ledger the charges include steps
    lost in crashes. Proof: the account never exceeds a mix of events whose epsilon was computed and is below the
    target by the accountant's tolerance (`BudgetCache`), so the accountant's result for a part of the mix is
    within the target too. A run that lost steps therefore takes fewer of them.

    `planned_steps` is how many steps the noise was calibrated for. It saves computations and tells a ledger
    how many steps it may reserve at once; it is not a limit.
    """

    def __init__(self, target_epsilon: float, target_delta: float, planned_steps: int = 0) -> None:
        self.target_epsilon = check_epsilon(target_epsilon, "target_epsilon")
        self.target_delta = check_delta(target_delta, "target_delta")
        self.budget_cache = BudgetCache(
            self.target_epsilon - tolerance(self.target_epsilon),
            self.target_delta,
            check_count("planned_steps", planned_steps, minimum=0),
        )

    @property
    def planned_steps(self) -> int:
        """How many steps the noise was calibrated for; 0 if that is not known."""
        return self.budget_cache.planned_steps

    def require(self, account: Events, event: DpEvent, kind: str = "step") -> None:
        """Refuse `event`, of the `kind` "step" or "choice", with `BudgetExceeded` if it would exceed the target beside the
        `account` so far.

        For a run without a ledger; a ledger checks by itself, under its lock.
        """
        key = event_key(event)
        events, counts = {key: event}, {key: 0}
        for known, count in account:
            events[name := event_key(known)] = known
            counts[name] = counts.get(name, 0) + count
        while not (granted := self.budget_cache.grant(counts, key, 1)):
            if granted == 0:
                raise self.refusal(f"one more {kind}", f"{counts[key]} {kind}s like it were charged")
            self.budget_cache.extend(events, counts, key, 1)

    def refusal(self, what: str, account: str) -> BudgetExceeded:
        """The error for an event that does not fit beside an account, both in words."""
        return BudgetExceeded(
            f"{what} would pass the budget of target_epsilon {self.target_epsilon:g} at delta "
            f"{self.target_delta:g}, which is a cap: {account}"
        )
