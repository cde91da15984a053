"""Gaussian l1-recovery (SGO Algorithm 2): a few noisy measurements, and the sparsest mean behind them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import gammaln, ndtr
from spgl1 import spg_bpdn

from sparsedp.convex.measurement import Measurement
from sparsedp.convex.noise import GaussianNoise
from sparsedp.mechanisms.histogram import Floats
from sparsedp.randomness import Stream

_BLOCK = 256
_ITERATIONS = 400


def measurement_count(n: int, d: int, s: int, epsilon: float, delta: float) -> int:
    """m = n eps sqrt(s ln(d/s) / ln(1/delta)), rounded up."""
    return math.ceil(n * epsilon * math.sqrt(s * max(1.0, math.log(d / s)) / math.log(1 / delta)))


def few_enough(m: int, d: int) -> bool:
    """Whether m measurements are few beside d coordinates; if d < m ln^2 m plain noise is added."""
    return d >= m * math.log(m) ** 2 and m < d


def measurement_bound(m: int, l2_bound: float) -> float:
    """C = L (1 + 2 / sqrt(2m)): two standard deviations above the norm of a measured row of norm L."""
    return l2_bound * (1 + 2 / math.sqrt(2 * m))


def measured_mean(rows: sparse.csr_array, measurement: Measurement, bound: float) -> Floats:
    """The mean of the measured rows A z_i, each shortened to norm ``bound``; a block of rows at a time."""
    n = rows.shape[0]
    total = np.zeros(measurement.m)
    for start in range(0, n, _BLOCK):
        block = rows[start : start + _BLOCK]
        touched, local = np.unique(block.indices, return_inverse=True)
        small: Any = sparse.csr_array((block.data, local, block.indptr), shape=(block.shape[0], touched.size))
        measured = np.asarray(small @ measurement.columns(touched.astype(np.int64)))
        norms = np.linalg.norm(measured, axis=1)
        total += measured.T @ np.minimum(1.0, bound / np.maximum(norms, bound))
    return total / n


def recovery_noise(n: int, m: int, *, epsilon: float, delta: float, l2_bound: float) -> GaussianNoise:
    """The noise on the m measurements.

    Guarantee: ``noise.add(measured_mean(...), stream)`` is (epsilon, delta)-DP under replace-one adjacency,
    whatever the measurement matrix. Sensitivity: each measured row has been shortened to norm C, so replacing
    one moves their mean by at most 2C/n. Released: the noisy measurements, and with them everything recovered
    from them. Event: Gaussian(sigma_AG). No part of delta pays for the matrix to be a restricted isometry.
    """
    return GaussianNoise.calibrated(2 * measurement_bound(m, l2_bound) / n, epsilon, delta)


def recover(
    measurement: Measurement,
    measured: Floats,
    noise: GaussianNoise,
    *,
    l2_bound: float,
    stream: Stream,
    beta: float,
) -> Floats:
    """Basis pursuit denoising on noisy measurements; zero where the answer is longer than twice any mean.

    Minimises ||z||_1 subject to ||A z - b|| <= r with r the norm that the noise stays below (SPGL1). How well
    the solver does is a matter of utility alone.
    """
    noisy = noise.add(measured, stream)
    radius = noise.norm(noisy.size, beta)
    if float(np.linalg.norm(noisy)) <= radius:
        return np.zeros(measurement.d)
    z, *_ = spg_bpdn(measurement.operator(), noisy, radius, iter_lim=_ITERATIONS, opt_tol=1e-3)
    estimate = np.asarray(z, dtype=np.float64).ravel()
    return estimate if float(np.linalg.norm(estimate)) <= 2 * l2_bound else np.zeros_like(estimate)


def recovery_error_bound(
    noise: GaussianNoise, m: int, d: int, s: int, l2_bound: float, *, beta: float
) -> float:
    """What the error of recovery stays below, but for probability ``beta``, with constants.

    Proof: let h be the error. The mean is feasible if r covers noise and clipping, so ||h||_1 <= 2 L sqrt(s)
    and ||A h|| <= 2r. By Gordon's inequality a Gaussian A has
    ||A h|| >= (||h|| (E||g_m|| - u) - ||h||_1 E||g_d||_inf) / sqrt(m) on all such h, but for probability
    e^(-u^2/2); E||g_d||_inf <= sqrt(2 ln 2d). Solve for ||h||. Clipping moves the measured mean by
    E (||A z|| - C)_+ on average, which Markov's inequality turns into a bound. Each event gets beta / 3.
    The rate is that of Theorem 3.4, with ln d for ln(d/s).
    """
    each = beta / 3
    u = math.sqrt(2 * math.log(1 / each))
    mean_norm = math.sqrt(2) * math.exp(gammaln((m + 1) / 2) - gammaln(m / 2))
    if u >= mean_norm:
        return 3 * l2_bound
    excess = math.exp(-2.0) / math.sqrt(2 * math.pi) - 2 * float(ndtr(-2.0))  # E (Z - 2)_+
    clipped = l2_bound / math.sqrt(2 * m) * excess / each
    radius = noise.norm(m, each) + clipped
    width = 2 * l2_bound * math.sqrt(s) * math.sqrt(2 * math.log(2 * d))
    # Neither the mean nor the answer is longer than L and 2L, whatever happens.
    return min(3 * l2_bound, (2 * radius * math.sqrt(m) + width) / (mean_norm - u))
