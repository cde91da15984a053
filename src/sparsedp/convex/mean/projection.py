"""The projection mechanism (SGO Algorithm 1): a noisy mean, brought back to the l1 ball of all means."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from sparsedp.convex.noise import GaussianNoise, LaplaceNoise, Noise, below
from sparsedp.core.arrays import F64
from sparsedp.mechanisms import project_l1_ball

_CHUNK = 2**18


@dataclass(frozen=True)
class Projected:
    """A point of an l1 ball, and the threshold by which every magnitude was shortened to get there."""

    point: F64
    threshold: float


def mean_noise(n: int, *, epsilon: float, delta: float, l2_bound: float, sparsity: int) -> Noise:
    """The noise of Algorithm 1 for the mean of n rows, with constants that are exact.

    Guarantee: ``noise.add(mean, stream)`` is (epsilon, delta)-DP under replace-one adjacency. Sensitivity:
    two rows of norm at most L are at most 2L apart in l2, so the mean moves by 2L/n; in the pure case rows
    also have l1 norm at most L sqrt(s) and the mean moves by 2 L sqrt(s) / n in l1. Released: the noisy
    mean. Event: Gaussian(sigma_AG), or Laplace(1/epsilon).
    """
    if delta == 0.0:
        return LaplaceNoise.calibrated(2 * l2_bound * math.sqrt(sparsity) / n, epsilon)
    return GaussianNoise.calibrated(2 * l2_bound / n, epsilon, delta)


def project(noisy: F64, radius: float) -> Projected:
    """Euclidean projection to the l1 ball, in time proportional to the dimension.

    A pass replaces a lower bound of the threshold by ``(sum of the candidates - radius) / their number``,
    and drops the candidates below it (Michelot 1986): what stays is few, and is projected as it is.
    """
    magnitudes = np.abs(noisy)
    if float(magnitudes.sum()) <= radius:
        return Projected(noisy.copy(), 0.0)
    candidates = magnitudes
    for _ in range(8):
        bound = (float(candidates.sum()) - radius) / candidates.size
        candidates = candidates[candidates >= bound]
    threshold = float(candidates.max() - project_l1_ball(candidates, radius).max())
    return Projected(shrink(noisy, threshold), threshold)


def shrink(noisy: F64, threshold: float) -> F64:
    """Soft thresholding: every magnitude shortened by ``threshold``, or to zero."""
    shrunk = np.abs(noisy)
    shrunk -= threshold
    np.maximum(shrunk, 0.0, out=shrunk)
    return np.copysign(shrunk, noisy, out=shrunk)


def ball_risk(noisy: F64, noise: Noise, ball: Projected) -> float:
    """An unbiased estimate of the squared error of projecting to an l1 ball of fixed radius.

    With y = mean + noise, the error is ``|f(y) - y|^2 + 2 <noise, f(y) - y> + |noise|^2``; the first term is
    the sum of ``min(|y|, t)^2``, and the mean of the second follows from how many coordinates pass the threshold t.
    A coordinate that passes moves by 1 - 1/k of what its noise does, because the threshold rises for all k that
    pass: the projection follows the noise by one coordinate less than a fixed threshold would.
    Unbiased for Gaussian noise; for Laplace noise k is taken as it is, without the fresh noise.
    """
    squares, passing = risk_terms(noisy, noise, np.array([ball.threshold]))
    if ball.threshold > 0.0:
        passing = passing * (1 - 1 / max(1, int(np.count_nonzero(ball.point))))
    return float(squares[0] + noise.variance * (2 * passing[0] - noisy.size))


def risk_terms(noisy: F64, noise: Noise, thresholds: F64) -> tuple[F64, F64]:
    """For each threshold t: the sum of ``min(|y|, t)^2``, and how many coordinates pass."""
    squares, passing = np.zeros(thresholds.size), np.zeros(thresholds.size)
    for start in range(0, noisy.size, _CHUNK):
        magnitudes = np.abs(noisy[start : start + _CHUNK])
        within, inner = below(magnitudes, thresholds, [magnitudes**2])
        squares += inner + thresholds**2 * (magnitudes.size - within)
        passing += noise.passing(magnitudes, thresholds)
    return squares, passing


def projection_error_bound(noise: Noise, d: int, radius: float, *, beta: float) -> float:
    """What the error of Algorithm 1 stays below, but for probability ``beta`` (Theorems 3.2 and 3.3).

    ``min(||noise||_2, sqrt(2 radius ||noise||_inf))``: projecting to a convex set that holds the mean does
    not lengthen the error, and Lemma 3.1 with radius = L sqrt(s).
    """
    return min(noise.norm(d, beta), math.sqrt(2 * radius * noise.largest(d, beta)))


def pure_noise_error(noise: Noise, d: int, radius: float) -> float:
    """How long the answer of Algorithm 1 is where the mean is zero: about its error at any mean that is small against the noise.

    Its threshold t is the one at which d excesses ``E max(|noise| - t, 0)`` fill the ball.
    """
    if d * noise.excess(0.0) <= radius:
        return math.sqrt(d * noise.variance)
    most = noise.largest(d, 1e-9)
    if d * noise.excess(most) >= radius:
        return radius
    threshold = optimize.brentq(lambda t: d * noise.excess(t) - radius, 0.0, most)
    return min(radius, math.sqrt(d * float(noise.square_excess(np.asarray(threshold)))))
