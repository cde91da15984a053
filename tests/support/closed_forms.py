"""Formulas that the library's numbers are compared with."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sparsedp.convex.mean.projection import risk_terms
from sparsedp.convex.noise import Noise


def bounded_range_delta(loss: float, epsilon: float) -> float:
    """delta_BR: the largest delta at `loss` of any bounded-range mechanism (Dong, Durfee and Rogers 2020).

    `(1 - e^((loss - epsilon)/2))^2 / (1 - e^-epsilon)` between -epsilon and epsilon; the worst case is the
    mechanism with two outcomes of losses t and t - epsilon, t = (loss + epsilon)/2.
    """
    if loss >= epsilon:
        return 0.0
    if loss <= -epsilon:
        return -math.expm1(loss)
    return math.expm1((loss - epsilon) / 2) ** 2 / -math.expm1(-epsilon)


def threshold_risk(
    noisy: NDArray[np.float64], noise: Noise, thresholds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Unbiased estimates of the squared error of soft thresholding, one for each (sorted) threshold."""
    squares, passing = risk_terms(noisy, noise, thresholds)
    return np.asarray(squares + noise.variance * (2 * passing - noisy.size))
