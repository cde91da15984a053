"""Sigma from epsilon, epsilon from sigma, and how many steps fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dp_accounting.pld import PLDAccountant

from sparsedp.accounting.events import DpEvent, Events, GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.accounting.validation import check_count, check_delta, check_epsilon, check_positive, check_rate

def _accountant(events: Events) -> PLDAccountant:
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for event, count in events:
        accountant.compose(event, check_count("count", count, minimum=0))
    return accountant


def epsilon_of(events: Events, delta: float) -> float:
    """Epsilon of all these events together, add-or-remove-one."""
    return float(_accountant(events).get_epsilon(check_delta(delta)))


def delta_of(events: Events, epsilon: float) -> float:
    """Delta of all these events together, add-or-remove-one."""
    return float(_accountant(events).get_delta(epsilon))


def epsilon(
    *, noise_multiplier: float, sampling_rate: float, steps: int, delta: float, extra_events: Sequence[DpEvent] = ()
) -> float:
    """Epsilon of `steps` Poisson-sampled Gaussian steps and `extra_events`."""
    step = PoissonSampledDpEvent(check_rate("sampling_rate", sampling_rate), GaussianDpEvent(check_positive("noise_multiplier", noise_multiplier)))
    return epsilon_of([*((event, 1) for event in extra_events), (step, check_count("steps", steps, minimum=0))], delta)


def calibrate(
    *,
    target_epsilon: float,
    target_delta: float,
    sampling_rate: float,
    steps: int,
    extra_events: Sequence[DpEvent] = (),
    step_event: Callable[[float], DpEvent] | None = None,
) -> float:
    """The smallest noise multiplier within the target."""
    check_epsilon(target_epsilon, "target_epsilon")
    check_delta(target_delta, "target_delta")
    check_rate("sampling_rate", sampling_rate)
    check_count("steps", steps)
    make = step_event or (lambda sigma: PoissonSampledDpEvent(sampling_rate, GaussianDpEvent(sigma)))
    extra: list[tuple[DpEvent, int]] = [(event, 1) for event in extra_events]

    def excess(log_sigma: float) -> float:
        return epsilon_of([*extra, (make(math.exp(log_sigma)), steps)], target_delta) - target_epsilon

    low, high = math.log(0.3), math.log(2.0)
    while excess(high) > 0:
        low, high = high, high + 1
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return math.exp(high)


def max_steps(
    *, step_event: DpEvent, target_epsilon: float, target_delta: float, extra_events: Sequence[DpEvent] = ()
) -> int:
    """How many steps fit."""
    extra: list[tuple[DpEvent, int]] = [(event, 1) for event in extra_events]

    def fits(steps: int) -> bool:
        return epsilon_of([*extra, (step_event, steps)], target_delta) <= target_epsilon

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
