"""Noisy gradient descent for linear models: full batches and clipped gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.convex.erm.private_minimiser import PrivateMinimiser, minimiser_statement
from sparsedp.convex.erm.regularization import FREE_MARGIN
from sparsedp.convex.erm.risk import LinearRisk
from sparsedp.convex.neighbours import changed_terms
from sparsedp.convex.noise import GaussianNoise
from sparsedp.core.arrays import F64
from sparsedp.core.defaults import default_delta
from sparsedp.core.validation import check_count, check_delta, check_epsilon, check_positive
from sparsedp.randomness import NoiseSource

_MOST_STEPS = 300
_ONE_MARGIN = 2 * FREE_MARGIN
"""What noise may do to the only margin of two classes, which has no other to be confused with."""


def noisy_descent(
    risk: LinearRisk,
    *,
    epsilon: float,
    delta: float | None = None,
    steps: int | None = None,
    slope_clip: float | None = None,
    adjacency: str = REPLACE_ONE,
    source: NoiseSource | None = None,
) -> PrivateMinimiser:
    """Accelerated descent along noisy gradients of the whole data, from zero; the last point.

    Guarantee: (epsilon, delta)-DP under ``adjacency`` (replace-one, or add-or-remove-one with public n).
    Sensitivity: slopes are shortened to norm c = ``slope_clip`` (the loss's own bound if larger), so each
    mean gradient moves by at most 2 c |row| / n. Event: ``steps`` times Gaussian(sigma_AG sqrt(steps)), which
    together are exactly Gaussian(sigma_AG). Released: all noisy gradients, and so the last point.

    There is no regularisation: early stopping replaces it. How many steps, how long, and whether with
    momentum is decided by public numbers alone (``_choose_schedule``).
    """
    epsilon = check_epsilon(epsilon)
    delta = default_delta(risk.n) if delta is None else check_delta(delta)
    risk.verify(pure=False)
    source = NoiseSource() if source is None else source
    bound = risk.loss.bounds.slope_l2
    clip = bound if slope_clip is None else min(bound, check_positive("slope_clip", slope_clip))
    sensitivity = changed_terms(adjacency) * clip * risk.row_l2 / risk.n
    once = GaussianNoise.calibrated(sensitivity, epsilon, delta)
    schedule = _choose_schedule(risk, once.std, None if steps is None else check_count("steps", steps))
    noise = GaussianNoise(once.std * math.sqrt(schedule.steps))
    x = lookahead = np.zeros(risk.dimension)
    for step in range(schedule.steps):
        moved = lookahead - schedule.length * noise.add(
            _clipped_gradient(risk, lookahead, clip), source.noise
        )
        lookahead = moved + schedule.momentum(step) * (moved - x)
        x = moved
    return PrivateMinimiser(
        x=x,
        statement=minimiser_statement(risk, epsilon, delta, adjacency, source),
        sensitivity=sensitivity,
        noise_scale=noise.std,
    )


def momentum(step: int) -> float:
    """Nesterov's, for a function that need not be strongly convex."""
    return step / (step + 3)


def no_momentum(step: int) -> float:
    """Every step counts the same."""
    return 0.0


@dataclass(frozen=True)
class StepSchedule:
    """The number of steps, their size, and the momentum."""

    steps: int
    length: float
    momentum: Callable[[int], float]


def _clipped_gradient(risk: LinearRisk, x: F64, clip: float) -> F64:
    slopes = risk.loss.slopes(risk.margins(x), risk.targets)
    norms = np.linalg.norm(slopes, axis=1, keepdims=True)
    return risk.pull_back(slopes * (clip / np.maximum(norms, clip)))


def _choose_schedule(risk: LinearRisk, std: float, steps: int | None) -> StepSchedule:
    """Equal steps where few are enough, and momentum, with ``steps`` of its own, where noise would allow many.

    Equal steps weigh the noise of all gradients alike, which is what averages it best. They may be as long as
    the curvature at the start allows, for noise stops them before a row's classes are far apart; with momentum
    they keep to the curvature at worst.
    """
    bounds, square = risk.loss.bounds, risk.row_l2**2
    free = _ONE_MARGIN if risk.loss.outputs == 1 else FREE_MARGIN
    long, short = (1 / (c * square) for c in (bounds.level_curvature or bounds.curvature, bounds.curvature))
    if steps is None:
        equal = _choose_steps(std * long * risk.row_l2, free, no_momentum)
        if equal < _MOST_STEPS:
            return StepSchedule(equal, long, no_momentum)
        steps = _choose_steps(std * short * risk.row_l2, free, momentum)
    return StepSchedule(steps, short, momentum)


def _choose_steps(spread: float, free: float, momentum: Callable[[int], float]) -> int:
    """The most steps after which noise alone moves the margin of a longest row by ``free`` or less.

    ``spread`` is what one step at the whole budget does. Noise in the j-th of T steps has sqrt(T) times that
    and comes out with a weight that follows the momentum, as does what the data say: both are free of d.
    """
    now = lookahead = np.zeros(_MOST_STEPS)  # the weight of each step's noise in the point reached
    for step in range(_MOST_STEPS):
        moved = lookahead.copy()
        moved[step] += 1.0
        lookahead = moved + momentum(step) * (moved - now)
        now = moved
        if spread * math.sqrt(step + 1) * float(np.linalg.norm(now)) > free:
            return max(1, step)
    return _MOST_STEPS
