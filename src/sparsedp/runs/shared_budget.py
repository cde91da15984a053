"""One budget for all periods of a stream whose unit is the user, who may have rows in every period."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsedp.accounting import EpsilonCap, calibrate
from sparsedp.accounting.events import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from sparsedp.data import ClickData
from sparsedp.runs.config import RunConfig
from sparsedp.runs.cost import unseen_selection
from sparsedp.runs.users import loader_of, population, user_sampler, users_of
from sparsedp.training.step_config import StepConfig, sampling_of, total_steps, unit_of


@dataclass(frozen=True)
class BudgetShare:
    """What a period needs to know of the budget that it shares."""

    noise_multiplier: float
    cap: EpsilonCap
    """Of the whole run. Its ``planned_steps`` are those of the periods up to this one that cost what this one's do."""
    steps: int
    """How many this period plans."""
    charged_earlier: int
    """Steps of earlier periods that cost what this one's do: the ledger counts them together."""


@dataclass(frozen=True)
class SharedBudget:
    """The noise with which all periods together cost epsilon at ``delta``, and the steps that each of them plans.

    Guarantee: add-or-remove-one user, with all its rows in all periods. Released: the model after every step of every
    period, and the noisy counts. Proof: a period sees earlier ones by what they released alone, so that all is one
    adaptive composition of events that are fixed before the first: the steps of each period, for users of at most
    ``rows_per_user`` rows in it (``StepConfig.event``), and the counts. Where a user has no rows in a period, nothing
    there differs; where it has, the event of the period holds whatever rows it has elsewhere.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    steps: tuple[tuple[DpEvent, int], ...]
    """For each period its step, and how many of them."""

    def cap(self, planned_steps: int = 0) -> EpsilonCap:
        """Epsilon as a cap on the whole run."""
        return EpsilonCap(self.epsilon, self.delta, planned_steps)

    def share(self, period: int, charged: Sequence[int]) -> BudgetShare:
        """That of a period; ``charged``: how many steps the ledger has of each period before it."""
        step, planned = self.steps[period]
        alike = [number for number in range(period) if self.steps[number][0] == step]
        return BudgetShare(
            self.noise_multiplier,
            self.cap(planned + sum(self.steps[number][1] for number in alike)),
            planned,
            sum(charged[number] for number in alike),
        )


def shared_budget(
    config: RunConfig, periods: Sequence[ClickData], counts: Sequence[DpEvent]
) -> SharedBudget | None:
    """The budget that the periods of a stream share; None where each has its own (unit "example"), or there is none.

    Calibrated from public numbers: the users (or rows of capped users) of each period, its steps, and ``counts``, the
    events of all counts before and between them. Delta is by default that of all users of these periods.
    """
    if config.unit == "example" or not config.is_private:
        return None
    assert config.epsilon is not None
    plans = [_plan(config, period, number) for number, period in enumerate(periods)]
    delta = config.delta_for(users_of(periods))
    sigma = calibrate(
        target_epsilon=config.epsilon,
        target_delta=delta,
        sampling_rate=1.0,  # the steps say their own
        steps=1,
        extra_events=counts,
        step_event=lambda sigma: ComposedDpEvent(
            [SelfComposedDpEvent(step(sigma), steps) for step, steps in plans]
        ),
    )
    return SharedBudget(config.epsilon, delta, sigma, tuple((step(sigma), steps) for step, steps in plans))


def _plan(config: RunConfig, period: ClickData, number: int) -> tuple[Callable[[float], DpEvent], int]:
    """(the step of a period by its noise multiplier, how many steps it plans), as its trainer will have them."""
    sampler = user_sampler(config, period)
    loader = loader_of(config, period, sampler)
    batch = min(config.choices.expected_batch_size, population(period, sampler))
    sampling, protected = sampling_of(loader, batch, True), unit_of(loader, config.unit, True)
    selection, clip = unseen_selection(config, number), config.choices.max_grad_norm

    def step(sigma: float) -> DpEvent:
        return StepConfig(sigma, clip, *sampling, **protected).event(selection)

    return step, total_steps(config.choices.epochs, None, sampling)
