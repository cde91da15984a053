"""Numbers people look at while training: only what the mechanisms released."""

from __future__ import annotations

from typing import Any

from sparsedp.accounting import epsilon_of
from sparsedp.training.engine import PrivacyEngine
from sparsedp.training.optimizer import LastStep


class EpsilonMeter:
    """Epsilon so far, cheap enough for every step.

    The accountant is asked at few step counts only (each about an eighth above the last); between them the
    next higher one stands, so the figure never understates what was spent.
    """

    def __init__(self, engine: PrivacyEngine, delta: float) -> None:
        self._engine = engine
        self._delta = delta
        self._valid_until = 0
        self._value = 0.0

    def __call__(self) -> float:
        """An upper bound on what was spent up to now."""
        run = self._engine.run
        taken = run.optimizer.steps_taken
        if taken > self._valid_until:
            allowed = run.terms.max_steps
            ahead = max(taken, int(taken * 1.125))
            self._valid_until = ahead if allowed is None else min(ahead, max(allowed, taken))
            once = [(event, 1) for event in run.selection.one_off_events()]
            events = [*once, (run.terms.event(run.selection), self._valid_until)]
            self._value = epsilon_of(events, self._delta)
        return self._value


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
