"""Step sizes for bias-reduced SGD, from the theorems' second moment of its gradient."""

from __future__ import annotations

import math

import numpy as np

from sparsedp.convex.sgd.batch_schedule import BatchSchedule, level_probabilities
from sparsedp.core.validation import check_count, check_positive


def convex_step_size(
    schedule: BatchSchedule, *, dimension: int, sparsity: int, l2_bound: float, diameter: float
) -> float:
    """`D / (nu sqrt(T))` (Theorem 6.7)."""
    nu = gradient_scale(schedule, dimension=dimension, sparsity=sparsity, l2_bound=l2_bound)
    return check_positive("diameter", diameter) / (nu * math.sqrt(schedule.steps))


def stationary_step_size(
    schedule: BatchSchedule, *, dimension: int, sparsity: int, l2_bound: float, gap: float, smoothness: float
) -> float:
    """`sqrt(Gamma / (H T)) / nu`, at most `1 / (2 H)` (Theorem 6.8); Gamma bounds `F(start) - min F`."""
    nu = gradient_scale(schedule, dimension=dimension, sparsity=sparsity, l2_bound=l2_bound)
    smoothness = check_positive("smoothness", smoothness)
    step = math.sqrt(check_positive("gap", gap) / (smoothness * schedule.steps)) / nu
    return min(step, 0.5 / smoothness)


def gradient_scale(schedule: BatchSchedule, *, dimension: int, sparsity: int, l2_bound: float) -> float:
    """nu of Lemma 6.4: the root mean square norm of the gradient estimate, up to a constant.

    Over an expected m examples the projection mechanism errs by e_m with `e_m^2 = min(2 R sigma_m sqrt(2
    ln(2 d)), d sigma_m^2, (R + L)^2)`, R = L sqrt(s) and sigma_m = kappa L / m (Lemma 3.1; answer and mean
    are no longer than R and L). The means over B, O and E cancel, so level k adds `(e_{2^(k+1)}^2 +
    e_{2^k}^2 / 2) / p_k`; the singleton term adds `L^2/n + e_1^2`.
    """
    d, s = check_count("dimension", dimension, maximum=2**62), check_count("sparsity", sparsity)
    bound = check_positive("l2_bound", l2_bound)
    probabilities = level_probabilities(schedule.size)
    stds = schedule.noise * bound * 0.5 ** np.arange(probabilities.size + 1)
    reach = bound * math.sqrt(s)
    largest = stds * math.sqrt(2.0 * math.log(2.0 * d))
    errors = np.minimum(np.minimum(2.0 * reach * largest, d * stds**2), (reach + bound) ** 2)
    levels = ((errors[1:] + errors[:-1] / 2.0) / probabilities).sum()
    return math.sqrt(float(levels + errors[0] + bound**2 / schedule.size))
