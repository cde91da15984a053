"""Numbers people look at while training: only what the mechanisms released."""

from __future__ import annotations

import math
from typing import Any

from sparsedp.accounting import epsilon_of
from sparsedp.accounting.ledger_events import event_key
from sparsedp.accounting.pld import tolerance
from sparsedp.training.engine import PrivacyEngine
from sparsedp.training.optimizer import LastStep


class EpsilonMeter:
    """Epsilon so far, cheap enough for every step.

    Guarantee: never below what ``engine.statement`` would say at that moment. It reads the same account:
    with a ledger everything on it, also what crashed runs and other runs have entered. The accountant is
    asked at few step counts only (each about an eighth above the last); between them the next higher one
    stands. Proof: epsilon does not fall when events are added; what the accountant says of two accounts is
    off by at most its tolerance each, which is added; and a run alone on its ledger never passes its target.
    """

    def __init__(self, engine: PrivacyEngine, delta: float) -> None:
        self._engine = engine
        self._delta = delta
        self._covered: dict[str, int] = {}
        self._value = 0.0

    def __call__(self) -> float:
        """An upper bound on what was spent up to now."""
        account = [(event_key(event), event, count) for event, count in self._engine.events()]
        if any(count > self._covered.get(key, 0) for key, _, count in account):
            ahead = [(event, self._ahead(count)) for _, event, count in account]
            reached = epsilon_of(ahead, self._delta)
            self._value = max(self._value, reached + tolerance(reached))
            self._covered = {key: count for (key, *_), (_, count) in zip(account, ahead, strict=True)}
        return min(self._value, self._cap())

    def _ahead(self, count: int) -> int:
        """How many of an event to cover at once: no more than the run plans to add."""
        run = self._engine.run
        if run.terms.planned_steps is None:
            return int(count * 1.125)
        to_come = max(run.terms.planned_steps - run.optimizer.steps_taken, 0)
        return min(int(count * 1.125), count + to_come)

    def _cap(self) -> float:
        """What the account cannot pass: the run's target, where nobody else has written."""
        terms, ledger = self._engine.run.terms, self._engine.ledger
        capped = terms.target_epsilon is not None and terms.target_delta == self._delta
        if capped and (ledger is None or not ledger.shared):
            return float(terms.target_epsilon or 0.0)
        return math.inf


class TensorBoardMonitor:
    """Writes rows, gradient size, reduction and epsilon to a TensorBoard writer; add it to
    ``optimizer.callbacks``."""

    def __init__(self, writer: Any, engine: PrivacyEngine, delta: float, every: int = 10) -> None:
        self._writer = writer
        self._meter = EpsilonMeter(engine, delta)
        self._delta = delta
        self._every = every

    def __call__(self, step: LastStep) -> None:
        """Record one step."""
        if step.step % self._every:
            return
        add = self._writer.add_scalar
        add("sparsity/rows", step.rows, step.step)
        add("sparsity/gradient_size", step.gradient_size, step.step)
        add("sparsity/reduction", step.reduction, step.step)
        add(f"privacy/epsilon (delta {self._delta:g}, add-or-remove-one example)", self._meter(), step.step)
