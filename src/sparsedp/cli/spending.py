"""What `sparsedp account` answers about a list of events: epsilon, delta, a curve, how many steps are left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsedp.accounting.events import DpEvent, Events
    from sparsedp.accounting.statement import PrivacyStatement

CURVE_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)


@dataclass(frozen=True)
class Spending:
    """Events, planned or recorded, with all that a statement about them says."""

    events: Events
    adjacency: str
    unit: str
    released: str
    private: bool = True
    notes: tuple[str, ...] = ()

    def statement(self, delta: float) -> PrivacyStatement:
        """Epsilon at `delta`."""
        from sparsedp.accounting.calibration import epsilon_of

        return self._stated(epsilon_of(self.events, delta) if self.events else 0.0, delta)

    def statement_at(self, epsilon: float) -> PrivacyStatement:
        """Delta at `epsilon`."""
        from sparsedp.accounting.calibration import delta_of

        return self._stated(epsilon, delta_of(self.events, epsilon) if self.events else 0.0)

    def curve(self, delta: float | None) -> list[PrivacyStatement]:
        """Epsilon at deltas from 1e-3 to 1e-10, and at `delta`."""
        deltas = {*CURVE_DELTAS, *([] if delta is None else [delta])}
        return [self.statement(each) for each in sorted(deltas, reverse=True)]

    def more_steps(self, step: DpEvent, epsilon: float, delta: float) -> tuple[int, PrivacyStatement]:
        """(how many more of `step` fit within `epsilon` at `delta`, what all would then have cost)."""
        from sparsedp.accounting.calibration import epsilon_of, max_steps
        from sparsedp.accounting.events import SelfComposedDpEvent

        spent = [SelfComposedDpEvent(event, count) for event, count in self.events]
        fitting = max_steps(step_event=step, target_epsilon=epsilon, target_delta=delta, extra_events=spent)
        events = [*self.events, *([(step, fitting)] if fitting else [])]
        return fitting, self._stated(epsilon_of(events, delta) if events else 0.0, delta)

    def _stated(self, epsilon: float, delta: float) -> PrivacyStatement:
        from sparsedp.accounting.statement import PrivacyStatement

        return PrivacyStatement(
            epsilon, delta, self.adjacency, self.unit, self.released, self.private, self.notes
        )


def statement_json(statement: PrivacyStatement) -> dict[str, Any]:
    """A statement as plain values; an infinite epsilon is the word "inf", because null would read as none."""
    stated = statement.to_dict()
    return {**stated, "epsilon": "inf"} if math.isinf(statement.epsilon) else stated


def curve_lines(statements: list[PrivacyStatement]) -> list[str]:
    """A curve as a small table, and below it once what every line of it shares."""
    rows = [f"{each.delta:>10.3g}  {each.epsilon:.4g}" for each in statements]
    first = statements[0]
    shared = f"{first.adjacency} adjacency, unit: {first.unit}, released: {first.released}"
    shared = shared if first.private else f"NOT PRIVATE: {shared}"
    return [f"{'delta':>10}  epsilon", *rows, "; ".join([shared, *first.notes])]
