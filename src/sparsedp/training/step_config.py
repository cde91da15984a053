"""The public constants of a run: sampling, clipping, divisor and noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sparsedp.accounting.cap import EpsilonCap
from sparsedp.accounting.events import DpEvent, GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from sparsedp.accounting.users import user_step_event
from sparsedp.core.steps import steps_in, steps_per_epoch
from sparsedp.selection import Selection
from sparsedp.training.loader import check_loader, check_once
from sparsedp.training.user_sampler import Sample, UserSampler

Sampling = tuple[float, float, bool, int | None]
"""(B, q, poisson, steps per epoch): public constants."""

Unit = Literal["example", "user"]
"""What a neighbouring data set has one more or one less of."""


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
    unit: Unit = "example"
    user_sample: Sample | None = None
    """With unit "user": what a batch draws."""
    rows_per_user: int | None = None
    """With unit "user": the most rows of a user in a step, or with ``user_sample`` "rows" in all."""
    user_reduction: str | None = None

    def event(self, selection: Selection) -> DpEvent:
        """What one step spends.

        Where users are drawn, a user is to the step what an example is otherwise: its rows are one unit, which is
        clipped and counted once. Where rows of capped users are drawn, ``user_step_event`` has the proof.
        """
        if self.noise_multiplier == 0:
            return NonPrivateDpEvent()
        inner = selection.step_event(self.noise_multiplier)
        if self.user_sample == "rows":
            if not isinstance(inner, GaussianDpEvent):
                raise ValueError(
                    f"selection: a step of {type(selection).__name__} is not one Gaussian release, which sampling rows of "
                    "capped users needs; give UserSampler(..., sample='users')"
                )
            assert self.rows_per_user is not None
            return user_step_event(inner.noise_multiplier, self.sampling_rate, self.rows_per_user)
        return PoissonSampledDpEvent(self.sampling_rate, inner) if self.poisson else inner

    @property
    def notes(self) -> tuple[str, ...]:
        """What a statement says of the unit."""
        if self.user_sample == "users":
            return (
                f"each step draws users, {self.expected_batch_size:g} on average, and at most {self.rows_per_user} rows "
                "of each",
            )
        if self.user_sample == "rows":
            return (f"every user's rows were cut to {self.rows_per_user} before training",)
        return ()

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
    examples, counted = examples or len(data_loader.dataset), "examples"
    if isinstance(data_loader.sampler, UserSampler):
        examples, counted = data_loader.sampler.population, data_loader.sampler.sample
        if counted == "users" and expected_batch_size is None:
            raise ValueError(
                "expected_batch_size must be given: it counts users, and the loader's batch_size counts rows"
            )
    batch = expected_batch_size or data_loader.batch_size
    if batch is None:
        raise ValueError("expected_batch_size must be given: the loader has no batch_size")
    batch = positive("expected_batch_size", batch)
    if batch > examples:
        raise ValueError(f"expected_batch_size {batch:g} is larger than the dataset of {examples} {counted}")
    return batch, batch / examples, True, steps_per_epoch(batch / examples)


def unit_of(data_loader: Any, unit: Unit, poisson: bool) -> dict[str, Any]:
    """The fields of ``StepConfig`` that say what is protected; refuses a loader that is not made for it."""
    if unit not in ("example", "user"):
        raise ValueError(f"unit must be 'example' or 'user', got {unit!r}")
    sampler = getattr(data_loader, "sampler", None)
    if unit == "example":
        if isinstance(sampler, UserSampler):
            raise ValueError(
                "unit='example' with a UserSampler: give make_private(..., unit='user'), or a loader without that sampler"
            )
        return {}
    if not isinstance(sampler, UserSampler):
        raise ValueError(
            "unit='user' needs to know whose each row is: DataLoader(..., sampler=UserSampler(users, rows_per_user=...))"
        )
    if not poisson:
        raise ValueError("unit='user' needs poisson=True: users, or their rows, are drawn at random")
    if sampler.examples != len(data_loader.dataset):
        raise ValueError(
            f"users: {sampler.examples} ids for a dataset of {len(data_loader.dataset)} rows; give one per row"
        )
    return {
        "unit": "user",
        "user_sample": sampler.sample,
        "rows_per_user": sampler.rows_per_user,
        "user_reduction": sampler.reduction,
    }


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
