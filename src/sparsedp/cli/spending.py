"""What `sparsedp account` answers about a list of events: epsilon, delta, a curve, how many steps are left."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sparsedp.core.rounding_up import rounded_up

if TYPE_CHECKING:
    from sparsedp.accounting.events import DpEvent, Events
    from sparsedp.accounting.statement import PrivacyStatement
    from sparsedp.accounting.trade_off import TradeOffCurve

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
    group_size: int = 1
    """How many examples a neighbour has more; `unit` says so in words."""
    replaced: bool = False
    """Whether the answer is for replace-one, although the events are for add-or-remove-one."""

    def of_group(self, size: int) -> Spending:
        """The same, for groups of up to so many examples."""
        from sparsedp.core.validation import check_count

        if check_count("group_size", size) == 1:
            return self
        from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE

        if self.unit != "example" or self.replaced or self.adjacency != ADD_OR_REMOVE_ONE:
            raise ValueError(
                f"group_size: groups are of examples, {ADD_OR_REMOVE_ONE}; this is for the unit {self.unit!r}, {self.adjacency}"
            )
        return replace(self, unit=f"group of at most {size} examples", group_size=size)

    def under(self, adjacency: str | None) -> Spending:
        """The same under another adjacency, where that is known; None: as it is."""
        if adjacency in (None, self.adjacency):
            return self
        from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, REPLACE_ONE

        if (self.adjacency, adjacency) != (ADD_OR_REMOVE_ONE, REPLACE_ONE):
            raise ValueError(
                f"adjacency: what was spent is known for {self.adjacency}; from {ADD_OR_REMOVE_ONE} it can be told for "
                f"{REPLACE_ONE}, and nothing else, got {adjacency!r}"
            )
        return replace(self, adjacency=REPLACE_ONE, replaced=True)

    @cached_property
    def trade_off(self) -> TradeOffCurve:
        """The curve of an attacker's error rates; nothing is computed yet."""
        from sparsedp.accounting import group_trade_off_curve, trade_off_curve

        if self.replaced:
            return trade_off_curve(self.events).group(2)
        if self.group_size > 1:
            return group_trade_off_curve(self.events, self.group_size)
        return trade_off_curve(self.events)

    def _epsilon(self, delta: float) -> float:
        from sparsedp.accounting import epsilon_of, group_epsilon_of, replace_one_epsilon_of

        if not self.events:
            return 0.0
        if self.replaced:
            return replace_one_epsilon_of(self.events, delta)
        if self.group_size > 1:
            return group_epsilon_of(self.events, self.group_size, delta)
        return epsilon_of(self.events, delta)

    def _delta(self, epsilon: float) -> float:
        from sparsedp.accounting import delta_of, group_delta_of, replace_one_delta_of

        if not self.events:
            return 0.0
        if self.replaced:
            return replace_one_delta_of(self.events, epsilon)
        if self.group_size > 1:
            return group_delta_of(self.events, self.group_size, epsilon)
        return delta_of(self.events, epsilon)

    def statement(self, delta: float) -> PrivacyStatement:
        """Epsilon at `delta`."""
        return self._stated(self._epsilon(delta), delta)

    def statement_at(self, epsilon: float) -> PrivacyStatement:
        """Delta at `epsilon`."""
        return self._stated(epsilon, self._delta(epsilon))

    def curve(self, delta: float | None) -> list[PrivacyStatement]:
        """Epsilon at deltas from 1e-3 to 1e-10, and at `delta`."""
        deltas = {*CURVE_DELTAS, *([] if delta is None else [delta])}
        return [self.statement(each) for each in sorted(deltas, reverse=True)]

    def more_steps(self, step: DpEvent, epsilon: float, delta: float) -> tuple[int, PrivacyStatement]:
        """(how many more of `step` fit within `epsilon` at `delta`, what all would then have cost)."""
        from sparsedp.accounting.calibration import max_steps
        from sparsedp.accounting.events import SelfComposedDpEvent

        if self.replaced or self.group_size > 1:
            raise ValueError(
                "steps_within: how many steps fit is known for one example, add-or-remove-one; leave out group_size and adjacency"
            )
        spent = [SelfComposedDpEvent(event, count) for event, count in self.events]
        fitting = max_steps(step_event=step, target_epsilon=epsilon, target_delta=delta, extra_events=spent)
        events = [*self.events, *([(step, fitting)] if fitting else [])]
        then = replace(self, events=events)
        return fitting, then.statement(delta)

    def _stated(self, epsilon: float, delta: float) -> PrivacyStatement:
        from sparsedp.accounting.statement import PrivacyStatement

        return PrivacyStatement(
            epsilon,
            delta,
            self.adjacency,
            self.unit,
            self.released,
            self.private,
            self.notes,
            self.trade_off,
        )


def statement_json(statement: PrivacyStatement) -> dict[str, Any]:
    """A statement as plain values; an infinite epsilon is the word "inf", because null would read as none."""
    stated = statement.to_dict()
    return {**stated, "epsilon": "inf"} if math.isinf(statement.epsilon) else stated


def curve_lines(statements: list[PrivacyStatement]) -> list[str]:
    """A curve as a small table, and below it once what every line of it shares."""
    rows = [f"{rounded_up(each.delta, 3):>10}  {rounded_up(each.epsilon, 4)}" for each in statements]
    first = statements[0]
    shared = f"{first.adjacency} adjacency, unit: {first.unit}, released: {first.released}"
    shared = shared if first.private else f"NOT PRIVATE: {shared}"
    return [f"{'delta':>10}  epsilon", *rows, "; ".join([shared, *first.notes])]
