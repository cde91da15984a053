"""How many events fit a budget, computed rarely instead of at every step."""

from __future__ import annotations

from collections.abc import Mapping

from dp_accounting import DpEvent, SelfComposedDpEvent

from sparsedp.accounting.budget import BudgetExceeded
from sparsedp.accounting.calibration import epsilon_of, max_steps

Counts = dict[str, int]


class BudgetCache:
    """A mix of events known to fit the budget: counts that are nowhere larger fit too, without a computation.

    Events are identified by their keys; a mix is a count per key.

    Guarantee: `grant` never lets the counts exceed a mix whose epsilon was computed and is within the budget.
    Proof: the epsilon of a composition does not fall when events are added to it.
    """

    def __init__(self, epsilon: float, delta: float, planned_steps: int = 0) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.planned_steps = planned_steps
        self._fits: Counts = {}
        self._largest: str | None = None  # the event of which not one more fits beside the others in `_fits`
        self._seen: Counts = {}

    def grant(self, counts: Mapping[str, int], key: str, requested: int) -> int | None:
        """How many of `requested` more events fit beside `counts`; None if that must be computed first."""
        others, fitting = _without(counts, key), _without(self._fits, key)
        if any(count > fitting.get(other, 0) for other, count in others.items()):
            return None
        room = self._fits.get(key, 0) - counts.get(key, 0)
        if room >= requested:
            return requested
        return max(room, 0) if others == fitting and key == self._largest else None

    def admit(self, events: Mapping[str, DpEvent], counts: Counts, key: str, requested: int) -> None:
        """Compute whether exactly `requested` more fit; raises `BudgetExceeded` if not."""
        mix = {**counts, key: counts.get(key, 0) + requested}
        reached = self._epsilon(events, mix)
        if reached > self.epsilon:
            raise BudgetExceeded(
                f"the budget of epsilon {self.epsilon:g} at delta {self.delta:g} would be passed: "
                f"epsilon would be {reached:.4g}; nothing was spent"
            )
        self._fits, self._largest = mix, None

    def extend(self, events: Mapping[str, DpEvent], counts: Counts, key: str, requested: int) -> None:
        """Compute whether the planned steps fit, or else how many do, for a run that requests repeatedly."""
        others = _without(counts, key)
        growth = {name: count - self._seen.get(name, count) for name, count in counts.items()}
        self._seen = dict(counts)
        if any(growth[name] > 0 for name in others):
            # Another run adds other events meanwhile. Leave room for several times what was added since the last
            # call: the largest count of this event beside theirs would be out of date at once.
            for times in (4, 2, 1, 0):
                mix = {name: count + times * max(growth[name], 0) for name, count in others.items()}
                mix[key] = counts.get(key, 0) + max(requested, times * growth.get(key, 0))
                if self._epsilon(events, mix) <= self.epsilon:
                    self._fits, self._largest = mix, None
                    return
        if (
            self.planned_steps >= counts.get(key, 0) + requested
        ):  # one computation; the largest count takes many
            mix = {**others, key: self.planned_steps}
            if self._epsilon(events, mix) <= self.epsilon:
                self._fits, self._largest = mix, None
                return
        try:
            limit = max_steps(
                step_event=events[key],
                target_epsilon=self.epsilon,
                target_delta=self.delta,
                extra_events=[SelfComposedDpEvent(events[name], count) for name, count in others.items()],
            )
        except ValueError:  # steps so cheap that there is no largest number: admit many
            self.admit(events, counts, key, 1000 * requested)
        else:
            self._fits, self._largest = {**others, key: limit}, key

    def _epsilon(self, events: Mapping[str, DpEvent], mix: Counts) -> float:
        return epsilon_of([(events[name], count) for name, count in mix.items()], self.delta)


def _without(counts: Mapping[str, int], key: str) -> Counts:
    return {name: count for name, count in counts.items() if name != key and count}
