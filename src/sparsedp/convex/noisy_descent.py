"""Noisy gradient descent for linear models: full batches, clipped gradients, Nesterov's momentum."""

from __future__ import annotations

import math

import numpy as np

from sparsedp.accounting.statement import REPLACE_ONE
from sparsedp.accounting.validation import check_count, check_delta, check_epsilon, check_positive
from sparsedp.convex.neighbours import changed_terms
from sparsedp.convex.noise import GaussianNoise
from sparsedp.convex.private_minimiser import PrivateMinimiser, minimiser_statement
from sparsedp.convex.regularization import FREE_MARGIN
from sparsedp.convex.risk import LinearRisk
from sparsedp.mechanisms.histogram import Floats
from sparsedp.randomness import NoiseSource

_MOST_STEPS = 300


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

    There is no regularisation: stopping early stands in for it. Step length 1 / smoothness.
    """
    epsilon = check_epsilon(epsilon)
    delta = 1 / (10 * risk.n) if delta is None else check_delta(delta)
    risk.verify(pure=False)
    source = NoiseSource() if source is None else source
    bound = risk.loss.bounds.slope_l2
    clip = bound if slope_clip is None else min(bound, check_positive("slope_clip", slope_clip))
    sensitivity = changed_terms(adjacency) * clip * risk.row_l2 / risk.n
    length = 1 / (risk.loss.bounds.curvature * risk.row_l2**2)
    once = GaussianNoise.calibrated(sensitivity, epsilon, delta)
    steps = _choose_steps(once.std * length * risk.row_l2) if steps is None else check_count("steps", steps)
    noise = GaussianNoise(once.std * math.sqrt(steps))
    x = look = np.zeros(risk.dimension)
    for step in range(steps):
        moved = look - length * noise.add(_clipped_gradient(risk, look, clip), source.noise)
        look = moved + momentum(step) * (moved - x)
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


def _clipped_gradient(risk: LinearRisk, x: Floats, clip: float) -> Floats:
    slopes = risk.loss.slopes(risk.margins(x), risk.targets)
    norms = np.linalg.norm(slopes, axis=1, keepdims=True)
    return risk.pull_back(slopes * (clip / np.maximum(norms, clip)))


def _choose_steps(spread: float) -> int:
    """The most steps after which noise alone moves the margin of a longest row by FREE_MARGIN or less.

    ``spread`` is what one step at the whole budget does. Noise in the j-th of T steps has sqrt(T) times that
    and comes out with a weight that follows the momentum, as does what the data say: both are free of d.
    """
    now = look = np.zeros(_MOST_STEPS)  # the weight of each step's noise in the point reached
    for step in range(_MOST_STEPS):
        moved = look.copy()
        moved[step] += 1.0
        look = moved + momentum(step) * (moved - now)
        now = moved
        if spread * math.sqrt(step + 1) * float(np.linalg.norm(now)) > FREE_MARGIN:
            return max(1, step)
    return _MOST_STEPS
