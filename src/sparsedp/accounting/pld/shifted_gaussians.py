"""Gaussians whose shift is random: several rows of one user, and Poisson batches that are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom
from typing_extensions import override

from sparsedp.accounting.pld.pairs import (
    LARGEST_SHIFT,
    SKETCH,
    Gaussian,
    Pair,
    Weighted,
    normal_cells,
    normal_quantile,
)
from sparsedp.accounting.pld.sampling import PoissonSampled
from sparsedp.core.arrays import F64

MOST_SHIFTS = 2000
"""A mixture has no more different shifts than this."""

_TABLE = 8000
_CHUNK = 1 << 19
_MOST_NEWTON_STEPS = 100
_ULPS = 4e-16


@dataclass(frozen=True)
class GaussianMixture(Pair):
    """sum_i probability_i N(shift_i, 1) against N(0, 1): the record moves the sum by a random amount >= 0.

    `infinity` is the probability of a shift so large that its loss counts as infinite.
    """

    shifts: tuple[float, ...]
    probabilities: tuple[float, ...]
    infinity: float = 0.0
    symmetric: ClassVar[bool] = False

    def loss(self, x: F64) -> F64:
        """ln(P/Q) at x, increasing in x."""
        return self._loss_and_slope(x)[0]

    def _loss_and_slope(self, x: F64) -> tuple[F64, F64]:
        shifts, log_weights = np.array(self.shifts), np.log(self.probabilities)
        loss, slope = np.empty(len(x)), np.empty(len(x))
        chunk = max(1, _CHUNK // len(shifts))
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            exponents = np.outer(x[part], shifts) + (log_weights - shifts**2 / 2)
            top = exponents.max(axis=1)
            terms = np.exp(exponents - top[:, None])
            total = terms.sum(axis=1)
            loss[part], slope[part] = top + np.log(total), (terms @ shifts) / total
        return loss, slope

    @override
    def cells(self, edges: F64) -> tuple[F64, F64]:
        x = self._inverse_loss(edges)
        p, q = np.zeros(len(x) + 1), normal_cells(x)
        for weight, shift in zip(self.probabilities, self.shifts, strict=True):
            p += weight * normal_cells(x - shift)
        p[-1] += self.infinity
        return p, q

    def _inverse_loss(self, losses: F64) -> F64:
        """x with loss(x) = losses; infinite outside the range."""
        grid = np.linspace(*self._ends(1e-300), _TABLE)
        values = self.loss(grid)
        inside = (losses > values[0]) & (losses < values[-1])
        result = np.where(losses <= values[0], -np.inf, np.inf)
        result[inside] = self._roots(losses[inside], grid, values)
        return result

    def _roots(self, requested: F64, grid: F64, values: F64) -> F64:
        """Newton steps from the interpolated x, each within the bracket of the root, up to rounding."""
        cell = np.searchsorted(values, requested)
        low, high, x = grid[cell - 1], grid[cell], np.interp(requested, values, grid)
        left = np.arange(len(requested))
        for _ in range(_MOST_NEWTON_STEPS):
            here, target = x[left], requested[left]
            loss, slope = self._loss_and_slope(here)
            off = loss - target
            low[left] = np.where(off <= 0, here, low[left])
            high[left] = np.where(off >= 0, here, high[left])
            step = here - off / np.maximum(slope, 1e-300)
            outside = (step < low[left]) | (step > high[left])
            x[left] = np.where(outside, (low[left] + high[left]) / 2, step)
            far = np.abs(off) > _ULPS * (1 + np.abs(target) + np.abs(here) * slope)
            left = left[far & (high[left] - low[left] > _ULPS * np.abs(here))]
            if not len(left):
                break
        return np.maximum.accumulate(x)

    def _ends(self, tail: float) -> tuple[float, float]:
        """x below which Q, and above which P, has mass at most `tail`."""
        z = normal_quantile(tail)
        log_weights = np.log(self.probabilities)

        def log_mass_above(x: float) -> float:
            return float(logsumexp(log_weights + log_ndtr(np.array(self.shifts) - x))) - math.log(tail)

        top = max(self.shifts) + z + 1
        return -z, float(brentq(log_mass_above, -z - 1, top)) if log_mass_above(-z - 1) > 0 else -z + 1

    @override
    def span(self, tail: float) -> tuple[float, float]:
        low, high = self.loss(np.array(self._ends(tail)))
        return float(low), float(high)

    @override
    def sketch(self, tail: float) -> F64:
        return np.unique(self.loss(np.linspace(*self._ends(tail), SKETCH)))


def rounded_up(shifts: F64, probabilities: F64, most: int) -> tuple[F64, F64]:
    """At most `most` of these ascending shifts: each represents itself and the smaller ones before it.

    A mixture with larger shifts dominates (Choquette-Choo et al. 2023).
    """
    if len(shifts) <= most:
        return shifts, probabilities
    stops = np.linspace(0, len(shifts), most + 1).astype(np.int64)
    return shifts[stops[1:] - 1], np.add.reduceat(probabilities, stops[:-1])


def gaussian_mixture(std: float, shifts: Sequence[float], probabilities: Sequence[float]) -> GaussianMixture:
    """The pair of a `MixtureOfGaussiansDpEvent`; impossible shifts are dropped, equal ones merged.

    Of more than `MOST_SHIFTS` different ones, neighbours are merged into the larger.
    """
    if len(shifts) != len(probabilities) or not len(shifts):
        raise ValueError("sampling_probs must have one entry for each of sensitivities, and at least one")
    sensitivities, chances = np.array(shifts, dtype=np.float64), np.array(probabilities, dtype=np.float64)
    if not (np.all(sensitivities >= 0) and np.all(sensitivities < np.inf)):
        raise ValueError("sensitivities must be finite and not negative")
    if not (np.all(chances >= 0) and abs(math.fsum(chances) - 1) <= 1e-9):
        raise ValueError("sampling_probs must be probabilities adding to 1")
    with np.errstate(over="ignore"):
        scaled = sensitivities[chances > 0] / std
    distinct, which = np.unique(scaled, return_inverse=True)
    weights = np.bincount(which, chances[chances > 0]).astype(np.float64)
    within = distinct <= LARGEST_SHIFT
    distinct, merged_weights = rounded_up(distinct[within], weights[within], MOST_SHIFTS)
    infinity = float(weights[~within].sum())
    return GaussianMixture(tuple(distinct.tolist()), tuple(merged_weights.tolist()), infinity)


@dataclass(frozen=True)
class SampledReplacement(Pair):
    """(1 - rate) N(0, 1) + rate N(mu, 1) against the same with -mu: a sampled record is exchanged."""

    mu: float
    rate: float
    symmetric: ClassVar[bool] = True

    @override
    def cells(self, edges: F64) -> tuple[F64, F64]:
        x = self._inverse_loss(edges)
        centre = normal_cells(x)
        up, down = normal_cells(x - self.mu), normal_cells(x + self.mu)
        return (1 - self.rate) * centre + self.rate * up, (1 - self.rate) * centre + self.rate * down

    def _inverse_loss(self, losses: F64) -> F64:
        # With y = e^(mu x): y e^(-loss/2) solves z^2 - 2 s z - 1 = 0, s = (1 - rate) sinh(loss/2)
        # e^(mu^2/2) / rate.
        if self.rate == 1:
            return losses / (2 * self.mu)
        half = np.abs(losses) / 2
        with np.errstate(divide="ignore"):
            log_s = (
                half
                + np.log(-np.expm1(-2 * half) / 2)
                + math.log1p(-self.rate)
                - math.log(self.rate)
                + self.mu**2 / 2
            )
        arcsinh = np.where(log_s > 30, log_s + math.log(2), np.arcsinh(np.exp(np.minimum(log_s, 30))))
        return np.sign(losses) * (half + arcsinh) / self.mu

    @override
    def span(self, tail: float) -> tuple[float, float]:
        x = self.mu + normal_quantile(tail)
        log_other = math.log1p(-self.rate) if self.rate < 1 else -math.inf
        log_rate = math.log(self.rate)
        top = np.logaddexp(log_other, log_rate + self.mu * x - self.mu**2 / 2)
        high = float(top - np.logaddexp(log_other, log_rate - self.mu * x - self.mu**2 / 2))
        return -high, high

    @override
    def sketch(self, tail: float) -> F64:
        x = np.linspace(-1, 1, SKETCH) * (self.mu + normal_quantile(tail))
        log_other = math.log1p(-self.rate) if self.rate < 1 else -math.inf
        up = np.logaddexp(log_other, math.log(self.rate) + self.mu * x - self.mu**2 / 2)
        down = np.logaddexp(log_other, math.log(self.rate) - self.mu * x - self.mu**2 / 2)
        return np.unique(up - down)


def truncated_poisson_gaussian(size: int, rate: float, batch: int, sigma: float) -> Pair:
    """Poisson batches cut at `batch` examples (Chua et al. 2025): the record may displace another.

    Given that the batch is full, the record is in it with the conditional probability below and then takes
    the place of another (a change of two sensitivities, bounded by the replacement pair); otherwise it is
    plain Poisson sampling.
    """
    plain = PoissonSampled(Gaussian(1 / sigma), rate) if rate < 1 else Gaussian(1 / sigma)
    full = float(binom.sf(batch - 1, size - 1, rate))
    if full == 0:
        return plain
    present = min(1.0, float(binom.sf(batch, size, rate)) * batch / full / size)
    return Weighted(full, SampledReplacement(2 / sigma, present), plain) if present > 0 else plain
