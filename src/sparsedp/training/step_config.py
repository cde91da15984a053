"""The public constants of a run: sampling, clipping, divisor and noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsedp.accounting.cap import EpsilonCap
from sparsedp.accounting.events import DpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from sparsedp.core.steps import steps_in, steps_per_epoch
from sparsedp.selection import Selection
from sparsedp.training.loader import check_loader, check_once

Sampling = tuple[float, float, bool, int | None]
"""(B, q, poisson, steps per epoch): public constants."""


@dataclass(frozen=True)
class StepConfig:
    """Public constants of a run."""

    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: float
    sampling_rate: float
    """1 where the user forms the batches."""
    poisson: bool
    steps_per_epoch: int | None
    target_epsilon: float | None = None
    """A cap on what the run spends at ``target_delta``; None where the noise multiplier was set instead."""
    target_delta: float | None = None
    planned_steps: int | None = None
    """How many steps the noise was calibrated for."""

    def event(self, selection: Selection) -> DpEvent:
        """What one step spends."""
        if self.noise_multiplier == 0:
            return NonPrivateDpEvent()
        inner = selection.step_event(self.noise_multiplier)
        return PoissonSampledDpEvent(self.sampling_rate, inner) if self.poisson else inner

    def cap(self) -> EpsilonCap | None:
        """The target as a cap; None without a target."""
        if self.target_epsilon is None or self.target_delta is None:
            return None
        return EpsilonCap(self.target_epsilon, self.target_delta, self.planned_steps or 0)


def sampling_of(
    data_loader: Any, expected_batch_size: float | None, poisson: bool, examples: int | None = None
) -> Sampling:
    """The sampling of a loader; refuses a loader that cannot be sampled so.

    ``examples`` counts those of all loaders, where this one has some of them.
    """
    if not poisson:
        batch = expected_batch_size or getattr(data_loader, "batch_size", None)
        if batch is None:
            raise ValueError("expected_batch_size must be given: the divisor of the gradient is public")
        check_once(data_loader)
        return positive("expected_batch_size", batch), 1.0, False, _length(data_loader)
    check_loader(data_loader)
    examples = examples or len(data_loader.dataset)
    batch = expected_batch_size or data_loader.batch_size
    if batch is None:
        raise ValueError("expected_batch_size must be given: the loader has no batch_size")
    batch = positive("expected_batch_size", batch)
    if batch > examples:
        raise ValueError(f"expected_batch_size {batch:g} is larger than the dataset of {examples} examples")
    return batch, batch / examples, True, steps_per_epoch(batch / examples)


def _length(data_loader: Any) -> int | None:
    try:
        return len(data_loader)
    except TypeError:  # a stream
        return None


def total_steps(epochs: float | None, steps: int | None, sampling: Sampling) -> int:
    """The steps of a run, from ``epochs`` or ``steps``."""
    if (epochs is None) == (steps is None):
        raise ValueError("epochs or steps: give one of them")
    if epochs is not None:
        if sampling[3] is None:
            raise ValueError("epochs: the data_loader is a stream without a length; give steps")
        return steps_in(positive("epochs", epochs), sampling[3])
    assert steps is not None
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    return int(steps)


def positive(name: str, value: float) -> float:
    """Refuse zero, negative numbers, NaN and infinity by name."""
    if not (value > 0 and value != float("inf")):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return float(value)
