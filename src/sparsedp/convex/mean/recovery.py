"""Gaussian l1-recovery (SGO Algorithm 2): a few noisy measurements, and the sparsest mean behind them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import gammaincc

from sparsedp.convex.clip import Rows, clip_rows, cut_for_sums
from sparsedp.convex.mean.measurement import Measurement
from sparsedp.convex.noise import GaussianNoise
from sparsedp.core.arrays import F64

_BLOCK = 256
_ITERATIONS = 400


def measurement_count(n: int, d: int, s: int, epsilon: float, delta: float) -> int:
    """m = n eps sqrt(s ln(d/s) / ln(1/delta)), rounded up."""
    return math.ceil(n * epsilon * math.sqrt(s * max(1.0, math.log(d / s)) / math.log(1 / delta)))


def few_enough(m: int, d: int) -> bool:
    """Whether m measurements are few compared with d coordinates; if d < m ln^2 m plain noise is added."""
    return d >= m * math.log(m) ** 2 and m < d


def measurement_bound(m: int, l2_bound: float) -> float:
    """C = L (1 + 2 / sqrt(2m)): two standard deviations above the norm of a measured row of norm L."""
    return l2_bound * (1 + 2 / math.sqrt(2 * m))


def measured_mean(rows: sparse.csr_array, measurement: Measurement, bound: float) -> F64:
    """The mean of the rows A z_i, each shortened to norm ``bound``, without rounding; a block at a time."""
    n = rows.shape[0]
    total = np.zeros(measurement.m)
    for start in range(0, n, _BLOCK):
        block = rows[start : start + _BLOCK]
        touched, local = np.unique(block.indices, return_inverse=True)
        small: Any = sparse.csr_array((block.data, local, block.indptr), shape=(block.shape[0], touched.size))
        measured: Rows = np.asarray(small @ measurement.columns(touched.astype(np.int64)))
        total += cut_for_sums(np.asarray(clip_rows(measured, l2=bound)), n * bound).sum(axis=0)
    return total / n


def recovery_noise(n: int, m: int, *, epsilon: float, delta: float, l2_bound: float) -> GaussianNoise:
    """The noise on the m measurements.

    Guarantee: ``noise.add(measured_mean(...), stream)`` is (epsilon, delta)-DP under replace-one adjacency,
    whatever the measurement matrix. Sensitivity: each measured row has been shortened to norm C, so replacing
    one moves their mean by at most 2C/n. Released: the noisy measurements, and with them everything recovered
    from them. Event: Gaussian(sigma_AG). No part of delta is spent on the matrix being a restricted isometry.
    """
    return GaussianNoise.calibrated(2 * measurement_bound(m, l2_bound) / n, epsilon, delta)


def recovery_radius(noise: GaussianNoise, m: int, l2_bound: float, *, beta: float) -> float:
    """How far the noisy measurements are from those of the mean at most, but for probability 2 ``beta``.

    Noise, and what clipping took away: E (||A z|| - C)_+ for a row of norm L and a Gaussian A, where ||A z||
    is L / sqrt(m) times a chi of m degrees, turned into a bound by Markov's inequality.
    """
    bound = measurement_bound(m, l2_bound) * math.sqrt(m) / l2_bound
    beyond = _mean_norm(m) * gammaincc((m + 1) / 2, bound**2 / 2) - bound * gammaincc(m / 2, bound**2 / 2)
    clipped = l2_bound / math.sqrt(m) * max(float(beyond), 0.0)
    return noise.norm(m, beta) + clipped / beta


def recover(measurement: Measurement, noisy: F64, *, radius: float, l2_bound: float) -> F64:
    """Basis pursuit denoising on noisy measurements; zero where the answer is longer than twice any mean.

    Minimises ||z||_1 subject to ||A z - noisy|| <= radius (SPGL1). How well the solver does is a matter of
    utility alone.
    """
    from spgl1 import spg_bpdn

    if float(np.linalg.norm(noisy)) <= radius:
        return np.zeros(measurement.d)
    z, *_ = spg_bpdn(measurement.operator(), noisy, radius, iter_lim=_ITERATIONS, opt_tol=1e-3)
    estimate = np.asarray(z, dtype=np.float64).ravel()
    return estimate if float(np.linalg.norm(estimate)) <= 2 * l2_bound else np.zeros_like(estimate)


def recovery_error_bound(radius: float, m: int, d: int, s: int, l2_bound: float, *, beta: float) -> float:
    """What the error of recovery stays below where ``radius`` holds, but for a further probability ``beta``.

    Proof: let h be the error. The mean is feasible, so ||h||_1 <= 2 L sqrt(s) and ||A h|| <= 2 radius. By
    Gordon's inequality a Gaussian A has ||A h|| >= (||h|| (E||g_m|| - u) - ||h||_1 E||g_d||_inf) / sqrt(m) on
    all such h, but for probability e^(-u^2/2); and E||g_d||_inf <= sqrt(2 ln 2d). Solve for ||h||. The rate
    is that of Theorem 3.4, with ln d for ln(d/s). Cosine measurements are held to the same bound, unproved.
    """
    spread = _mean_norm(m) - math.sqrt(2 * math.log(1 / beta))
    longest = 3 * l2_bound  # neither the mean nor the answer is longer than L and 2L, whatever happens
    if spread <= 0:
        return longest
    width = 2 * l2_bound * math.sqrt(s) * math.sqrt(2 * math.log(2 * d))
    return min(longest, (2 * radius * math.sqrt(m) + width) / spread)


def _mean_norm(m: int) -> float:
    """E||g|| for a standard normal g of m dimensions."""
    return math.sqrt(2) * math.exp(math.lgamma((m + 1) / 2) - math.lgamma(m / 2))
