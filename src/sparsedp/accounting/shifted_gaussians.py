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

from sparsedp.accounting.pairs import SKETCH, Array, Gaussian, Pair, Weighted, normal_cells, normal_quantile
from sparsedp.accounting.sampling import PoissonSampled

_TABLE = 8000
_CHUNK = 1 << 14


@dataclass(frozen=True)
class GaussianMixture:
    """sum_i probability_i N(shift_i, 1) against N(0, 1): the record moves the sum by a random amount >= 0."""

    shifts: tuple[float, ...]
    probabilities: tuple[float, ...]
    symmetric: ClassVar[bool] = False

    def loss(self, x: Array) -> Array:
        """ln(P/Q) at x, increasing in x."""
        return self._loss_and_slope(x)[0]

    def _loss_and_slope(self, x: Array) -> tuple[Array, Array]:
        shifts, log_weights = np.array(self.shifts), np.log(self.probabilities)
        loss, slope = np.empty(len(x)), np.empty(len(x))
        for start in range(0, len(x), _CHUNK):
            part = slice(start, start + _CHUNK)
            exponents = np.outer(x[part], shifts) + (log_weights - shifts**2 / 2)
            top = exponents.max(axis=1)
            terms = np.exp(exponents - top[:, None])
            total = terms.sum(axis=1)
            loss[part], slope[part] = top + np.log(total), (terms @ shifts) / total
        return loss, slope

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See `Pair`."""
        x = self._inverse_loss(edges)
        q = normal_cells(x)
        p = sum(
            weight * normal_cells(x - shift)
            for weight, shift in zip(self.probabilities, self.shifts, strict=True)
        )
        return np.asarray(p), q

    def _inverse_loss(self, losses: Array) -> Array:
        """x with loss(x) = losses, interpolated and then by Newton steps; infinite outside the range."""
        grid = np.linspace(*self._ends(1e-300), _TABLE)
        values = self.loss(grid)
        inside = (losses > values[0]) & (losses < values[-1])
        x = np.interp(losses[inside], values, grid)
        for _ in range(2):
            loss, slope = self._loss_and_slope(x)
            step = (losses[inside] - loss) / np.maximum(slope, 1e-300)
            x = x + np.clip(step, grid[0] - grid[1], grid[1] - grid[0])
        result = np.where(losses <= values[0], -np.inf, np.inf)
        result[inside] = np.maximum.accumulate(x)
        return result

    def _ends(self, tail: float) -> tuple[float, float]:
        """x below which Q, and above which P, has mass at most `tail`."""
        z = normal_quantile(tail)
        log_weights = np.log(self.probabilities)

        def log_mass_above(x: float) -> float:
            return float(logsumexp(log_weights + log_ndtr(np.array(self.shifts) - x))) - math.log(tail)

        top = max(self.shifts) + z + 1
        return -z, float(brentq(log_mass_above, -z - 1, top)) if log_mass_above(-z - 1) > 0 else -z + 1

    def span(self, tail: float) -> tuple[float, float]:
        """See `Pair`."""
        low, high = self.loss(np.array(self._ends(tail)))
        return float(low), float(high)

    def sketch(self, tail: float) -> Array:
        """See `Pair`."""
        return np.unique(self.loss(np.linspace(*self._ends(tail), SKETCH)))


def gaussian_mixture(std: float, shifts: Sequence[float], probabilities: Sequence[float]) -> GaussianMixture:
    """The pair of a `MixtureOfGaussiansDpEvent`; impossible shifts are dropped, equal ones merged."""
    if len(shifts) != len(probabilities) or not len(shifts):
        raise ValueError("sampling_probs must have one entry for each of sensitivities, and at least one")
    if min(shifts) < 0 or min(probabilities) < 0 or abs(math.fsum(probabilities) - 1) > 1e-9:
        raise ValueError(
            "sensitivities must not be negative, and sampling_probs must be probabilities adding to 1"
        )
    merged: dict[float, float] = {}
    for shift, probability in sorted(zip(shifts, probabilities, strict=True)):
        if probability > 0:
            merged[shift / std] = merged.get(shift / std, 0.0) + probability
    return GaussianMixture(tuple(merged), tuple(merged.values()))


@dataclass(frozen=True)
class SampledReplacement:
    """(1 - rate) N(0, 1) + rate N(mu, 1) against the same with -mu: a sampled record is exchanged."""

    mu: float
    rate: float
    symmetric: ClassVar[bool] = True

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """See `Pair`."""
        x = self._inverse_loss(edges)
        centre = normal_cells(x)
        up, down = normal_cells(x - self.mu), normal_cells(x + self.mu)
        return (1 - self.rate) * centre + self.rate * up, (1 - self.rate) * centre + self.rate * down

    def _inverse_loss(self, losses: Array) -> Array:
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

    def span(self, tail: float) -> tuple[float, float]:
        """See `Pair`."""
        x = self.mu + normal_quantile(tail)
        log_other = math.log1p(-self.rate) if self.rate < 1 else -math.inf
        log_rate = math.log(self.rate)
        top = np.logaddexp(log_other, log_rate + self.mu * x - self.mu**2 / 2)
        high = float(top - np.logaddexp(log_other, log_rate - self.mu * x - self.mu**2 / 2))
        return -high, high

    def sketch(self, tail: float) -> Array:
        """See `Pair`."""
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
