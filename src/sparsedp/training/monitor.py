"""Numbers to watch during training: only what the mechanisms released."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from sparsedp.accounting import epsilon_of
from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.events import DpEvent
from sparsedp.accounting.pld.composition import tolerance
from sparsedp.training.engine import PrivacyEngine
from sparsedp.training.last_step import LastStep


class EpsilonMeter:
    """Epsilon so far, cheap enough for every step.

    Guarantee: never below what ``engine.statement`` would say at that moment. It reads the same account: with
    a ledger everything on it, including crashed and other runs. The accountant runs at few step counts only
    (each about an eighth above the last, up to the planned steps); in between, the value at the next higher
    count is returned. Of events other than the run's step it looks ahead at those that were added meanwhile, by other
    runs. Proof: epsilon does not fall when events are added, and the accountant's result exceeds
    the truth by at most its tolerance, which is added where it looked ahead.
    """

    def __init__(self, engine: PrivacyEngine, delta: float) -> None:
        self._engine = engine
        self._delta = delta
        self._covered: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._value = 0.0

    def __call__(self) -> float:
        """An upper bound on what was spent up to now."""
        events: dict[str, DpEvent] = {}
        counts: Counter[str] = Counter()
        for event, count in self._engine.events():
            events[key := event_key(event)] = event
            counts[key] += count
        if any(count > self._covered.get(key, 0) for key, count in counts.items()):
            step, remaining = self._step_key(), self._remaining_steps()
            grew = {key for key, count in counts.items() if count > self._seen.get(key, count)}
            ahead = {
                key: int(min(count * 1.125, count + remaining)) if key in {step, *grew} else count
                for key, count in counts.items()
            }
            self._seen = dict(counts)
            reached = epsilon_of([(events[key], count) for key, count in ahead.items()], self._delta)
            self._value = max(self._value, reached if ahead == counts else reached + tolerance(reached))
            self._covered = ahead
        return self._value

    def _step_key(self) -> str:
        session = self._engine.session
        return event_key(session.step_config.event(session.selection))

    def _remaining_steps(self) -> float:
        """How many planned steps the run may still take; steps that were charged and lost in a crash count as taken."""
        session, ledger = self._engine.session, self._engine.ledger
        if session.step_config.planned_steps is None:
            return math.inf
        step = self._step_key()
        spent = session.spent() if ledger is None else ledger.own_events()
        charged = sum(count for event, count in spent if event_key(event) == step)
        return max(session.step_config.planned_steps - charged, 0)


class TensorBoardMonitor:
    """Writes rows, gradient size, reduction and epsilon to a TensorBoard writer; add it to
    ``optimizer.callbacks``."""

    def __init__(self, writer: Any, engine: PrivacyEngine, delta: float, every: int = 10) -> None:
        self._writer = writer
        self._engine = engine
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
        spent = self._engine.statement(self._delta, at_most=self._meter())
        add(f"privacy/epsilon ({spent.terms})", spent.epsilon, step.step)
