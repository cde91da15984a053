"""Sigma from epsilon, epsilon from sigma, and how many steps fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from sparsedp.accounting import cache
from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.events import DpEvent, Events, GaussianDpEvent, PoissonSampledDpEvent
from sparsedp.accounting.pld.composition import Answer, delta_bound, epsilon_answer, tolerance
from sparsedp.accounting.pld.dominating import composition_key, merged
from sparsedp.accounting.search import last_fitting, solve_falling
from sparsedp.core.rounding_up import rounded_up
from sparsedp.core.validation import (
    check_delta,
    check_epsilon,
    check_non_negative,
    check_positive,
    check_rate,
    check_releases,
)

_ROUGH = 30.0  # the first search allows this many times the tolerance
_NARROW_ENOUGH_TO_GUESS = 0.01  # around a jump of the rough epsilon
_SIGMAS = (1e-2, 1e9)
_MOST_STEPS = 10**9
_LARGE = 100.0
_CONVERGED, _LOOSE = "settled", "loose"  # notes in the disk cache


class LooseEpsilonWarning(UserWarning):
    """An epsilon is an upper bound that a finer grid, too large to be computed, would still have lowered."""


def epsilon_of(events: Events, delta: float) -> float:
    """Epsilon at `delta` of all these events together: one loss distribution, refined until it converges.

    Guarantee: an upper bound under add-or-remove-one adjacency, above the exact value by at most
    `tolerance(epsilon)` (for pure DP alone five times that); where that would
    take too large a grid, a `LooseEpsilonWarning` says so. Infinite
    above 1e9, where nothing is protected. Results are cached on disk, under the serialised form of the events.
    """
    delta = check_delta(delta)
    leaves = merged(events)
    key = f"epsilon at {delta!r} of {composition_key(leaves)}"
    if (stored := cache.load(key)) is not None:
        answer = Answer(stored.number, stored.note == _CONVERGED)
    else:
        answer = epsilon_answer(leaves, delta)
        cache.store(key, answer.epsilon, _CONVERGED if answer.converged else _LOOSE)
    if not answer.converged:
        warnings.warn(
            f"epsilon {rounded_up(answer.epsilon, 4)} is a valid but not a tight upper bound",
            LooseEpsilonWarning,
            stacklevel=2,
        )
    return answer.epsilon


def delta_of(events: Events, epsilon: float) -> float:
    """Delta at `epsilon` of all these events together: an upper bound, add-or-remove-one."""
    return delta_bound(events, check_non_negative("epsilon", epsilon))


def _once(events: Sequence[DpEvent]) -> list[tuple[DpEvent, int]]:
    return [(event, 1) for event in events]


def epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    extra_events: Sequence[DpEvent] = (),
) -> float:
    """Epsilon at `delta` of `steps` Poisson-sampled Gaussian steps and, once each, `extra_events`."""
    sigma = check_positive("noise_multiplier", noise_multiplier)
    step = PoissonSampledDpEvent(check_rate("sampling_rate", sampling_rate), GaussianDpEvent(sigma))
    return epsilon_of([*_once(extra_events), (step, check_releases("steps", steps))], delta)


def calibrate(
    *,
    target_epsilon: float,
    target_delta: float,
    sampling_rate: float,
    steps: int,
    extra_events: Sequence[DpEvent] = (),
    step_event: Callable[[float], DpEvent] | None = None,
) -> float:
    """The smallest noise multiplier sigma with which the steps and the extra events stay within the target.

    A step is `step_event(sigma)`, by default `PoissonSampled(sampling_rate, Gaussian(sigma))`; its cost
    must not rise with sigma. Guarantee: `epsilon_of` the whole run, and of any part of it, is at most
    `target_epsilon`. The search aims below the target by twice `tolerance(target_epsilon)`, because parts of a run
    are computed on other grids.
    """
    target = check_epsilon(target_epsilon, "target_epsilon")
    delta = check_delta(target_delta, "target_delta")
    rate = check_rate("sampling_rate", sampling_rate)
    steps = check_releases("steps", steps, minimum=1)
    make = step_event or (lambda sigma: PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)))
    extra = merged(_once(extra_events))
    steps_and_extra = f"{steps} x {event_key(make(1.0))} and {composition_key(extra)}"
    key = f"sigma for {target!r} at {delta!r}: {steps_and_extra}"
    stored = cache.load(key)
    if stored is not None and stored.note == event_key(make(stored.number)):
        return stored.number
    sigma = _sigma(target, delta, steps, make, extra)
    cache.store(key, sigma, event_key(make(sigma)))
    return sigma


def _sigma(target: float, delta: float, steps: int, make: Callable[[float], DpEvent], extra: Events) -> float:
    def reached(sigma: float, slack: float) -> float:
        return epsilon_answer([*extra, (make(sigma), steps)], delta, slack).epsilon

    aim, slack = target - 2 * tolerance(target), tolerance(target)
    if aim <= 0:
        raise ValueError(f"target_epsilon of {target:g} is too small to be told from zero")
    if (floor := epsilon_answer(extra, delta).epsilon) >= aim:
        raise ValueError(
            f"target_epsilon of {target:g} is spent by extra_events alone: they cost {floor:.4g} "
            f"at delta {delta:g}"
        )
    if target > _LARGE and reached(_SIGMAS[0], _ROUGH) <= aim:
        raise ValueError(f"target_epsilon of {target:g} is so large here that no noise would be needed")
    sigma, exponent = solve_falling(
        lambda sigma: reached(sigma, _ROUGH),
        aim=aim,
        slack=_ROUGH * slack,
        guess=1.0,
        limits=_SIGMAS,
        narrow=_NARROW_ENOUGH_TO_GUESS,
    )
    if sigma >= 0.99 * _SIGMAS[1]:
        raise ValueError(
            f"target_epsilon of {target:g} cannot be reached with any noise_multiplier: "
            f"what does not depend on it costs {reached(sigma, 1.0):.4g} at delta {delta:g}"
        )
    if sigma <= 1.01 * _SIGMAS[0]:
        raise ValueError(f"target_delta of {delta:g} is so large here that no noise would be needed")
    sigma, _ = solve_falling(
        lambda sigma: reached(sigma, 1.0),
        aim=aim,
        slack=slack,
        guess=sigma,
        limits=_SIGMAS,
        exponent=exponent,
    )
    return sigma


def max_steps(
    *, step_event: DpEvent, target_epsilon: float, target_delta: float, extra_events: Sequence[DpEvent] = ()
) -> int:
    """How many times `step_event` fits within the target, in addition to `extra_events` once each.

    Guarantee: with that many, `epsilon_of` is at most `target_epsilon`; with one more it is not.
    """
    target = check_epsilon(target_epsilon, "target_epsilon")
    delta = check_delta(target_delta, "target_delta")
    extra = merged(_once(extra_events))
    key = f"steps for {target!r} at {delta!r}: {event_key(step_event)} and {composition_key(extra)}"
    if (stored := cache.load(key)) is not None:
        return int(stored.number)

    def reached(steps: float, slack: float) -> float:
        return epsilon_answer([*extra, (step_event, round(steps))], delta, slack).epsilon

    if reached(0, 1.0) > target:
        return 0
    # Fewer steps cost less: with 1/steps the cost falls, about as its square root.
    inverse, _ = solve_falling(
        lambda inverse: reached(1 / inverse, _ROUGH),
        aim=target,
        slack=_ROUGH * tolerance(target),
        guess=1e-3,
        limits=(1 / _MOST_STEPS, 1.0),
        exponent=-0.5,
    )
    steps = last_fitting(
        lambda steps: reached(steps, 1.0), target, guess=round(1 / inverse), most=_MOST_STEPS
    )
    if steps >= _MOST_STEPS - 1:
        raise ValueError(f"step_event costs next to nothing: more than {_MOST_STEPS} fit within the target")
    cache.store(key, steps)
    return steps
