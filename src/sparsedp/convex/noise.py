"""The two noises of SGO's mechanisms, Gaussian and Laplace, with what a theorem needs to know of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.accounting.validation import check_epsilon
from sparsedp.mechanisms import gaussian, laplace
from sparsedp.mechanisms.histogram import Floats
from sparsedp.randomness import Stream

_CHUNK = 2**18


class Noise(Protocol):
    """Independent noise of one scale on every coordinate."""

    @property
    def scale(self) -> float:
        """The parameter of the law: a standard deviation, or the scale of a Laplace."""
        ...

    def add(self, values: Floats, stream: Stream) -> Floats:
        """The values with noise, on a public grid."""
        ...

    def largest(self, d: int, beta: float) -> float:
        """What the largest of d magnitudes stays below, but for probability ``beta``."""
        ...

    def norm(self, d: int, beta: float) -> float:
        """What the l2 norm in d dimensions stays below, but for probability ``beta``."""
        ...

    def threshold_risk(self, magnitudes: Floats, thresholds: Floats) -> Floats:
        """Unbiased estimates of the squared error of soft thresholding, one for each (sorted) threshold."""
        ...

    def risk_allowance(self, d: int, thresholds: Floats) -> Floats:
        """What to add to these estimates so that, where there is nothing but noise, chance chooses none."""
        ...


@dataclass(frozen=True)
class GaussianNoise:
    """N(0, std^2) on every coordinate."""

    std: float

    @classmethod
    def calibrated(cls, l2_sensitivity: float, epsilon: float, delta: float) -> GaussianNoise:
        """The least noise that makes a release of this l2 sensitivity (epsilon, delta)-DP."""
        return cls(l2_sensitivity * analytic_gaussian_sigma(epsilon, delta))

    @property
    def scale(self) -> float:
        """The standard deviation."""
        return self.std

    def add(self, values: Floats, stream: Stream) -> Floats:
        """The Gaussian mechanism, a chunk at a time so that no more than a chunk is held twice."""
        return _in_chunks(values, lambda chunk: gaussian(chunk, std=self.std, stream=stream))

    def largest(self, d: int, beta: float) -> float:
        """By the union over d coordinates of two tails each."""
        return -self.std * float(ndtri(beta / (2 * d)))

    def norm(self, d: int, beta: float) -> float:
        """The norm is 1-Lipschitz in the noise, so it passes its mean by sqrt(2 ln(1/beta)) std at most."""
        return self.std * (math.sqrt(d) + math.sqrt(2 * math.log(1 / beta)))

    def threshold_risk(self, magnitudes: Floats, thresholds: Floats) -> Floats:
        """Stein's unbiased estimate: ``sum of min(y, t)^2 + 2 std^2 #{y > t} - d std^2``."""
        within, squares = _below(magnitudes, thresholds, [magnitudes**2])
        beyond = magnitudes.size - within
        risk = squares + thresholds**2 * beyond + 2 * self.std**2 * beyond
        return np.asarray(risk - magnitudes.size * self.std**2)

    def risk_allowance(self, d: int, thresholds: Floats) -> Floats:
        """Two standard deviations: each of d P(|noise| > t) magnitudes adds about 2 std^2 (Exp(1) - 1)."""
        return np.asarray(4 * self.std**2 * np.sqrt(2 * d * ndtr(-thresholds / self.std)))


@dataclass(frozen=True)
class LaplaceNoise:
    """Laplace of scale ``scale`` on every coordinate."""

    scale: float

    @classmethod
    def calibrated(cls, l1_sensitivity: float, epsilon: float) -> LaplaceNoise:
        """The least noise that makes a release of this l1 sensitivity epsilon-DP."""
        return cls(l1_sensitivity / check_epsilon(epsilon))

    def add(self, values: Floats, stream: Stream) -> Floats:
        """The Laplace mechanism, a chunk at a time."""
        return _in_chunks(values, lambda chunk: laplace(chunk, scale=self.scale, stream=stream))

    def largest(self, d: int, beta: float) -> float:
        """By the union over d coordinates of exponential tails."""
        return self.scale * math.log(d / beta)

    def norm(self, d: int, beta: float) -> float:
        """Chebyshev on the sum of squares (mean 2d, variance 20d), or sqrt(d) times the largest."""
        chebyshev = self.scale * math.sqrt(2 * d + math.sqrt(20 * d / beta))
        return min(chebyshev, math.sqrt(d) * self.largest(d, beta))

    def threshold_risk(self, magnitudes: Floats, thresholds: Floats) -> Floats:
        """Stein's idea for the Laplace law: ``sum of min(y, t)^2 - 4 b^2 P(|y + e| < t) + 2 b^2``.

        Proof: with y = x + noise, the squared error of soft thresholding is ``min(y, t)^2 + 2 noise g(y) +
        noise^2`` with ``g(y) = -clip(y, -t, t)``. The Fourier transforms of the density p and of u p(u)
        give ``E noise g(y) = 2 b^2 E (p * g')(y)``, and ``-(p * g')(y)`` is the probability that y plus
        fresh noise e lies within t.
        """
        y, t = magnitudes / self.scale, thresholds / self.scale
        decay = np.exp(-y)
        growth = np.cosh(np.minimum(y, t[-1]))  # only asked for below a threshold
        within, squares, growths, decays = _below(magnitudes, thresholds, [magnitudes**2, growth, decay])
        beyond = magnitudes.size - within
        inside = within - np.exp(-t) * growths + np.sinh(t) * (decay.sum() - decays)
        risk = squares + thresholds**2 * beyond - 4 * self.scale**2 * inside
        return np.asarray(risk + 2 * magnitudes.size * self.scale**2)

    def risk_allowance(self, d: int, thresholds: Floats) -> Floats:
        """Half a standard deviation: each of d e^(-t/b) magnitudes adds (t + b Exp(1))^2 - t^2 less its mean."""
        t, b = thresholds, self.scale
        return np.asarray(0.5 * np.sqrt(d * np.exp(-t / b) * (8 * (t * b) ** 2 + 24 * t * b**3 + 24 * b**4)))


def _in_chunks(values: Floats, add: Callable[[Floats], Floats]) -> Floats:
    noisy = np.empty_like(values)
    for start in range(0, values.size, _CHUNK):
        noisy[start : start + _CHUNK] = add(values[start : start + _CHUNK])
    return noisy


def _below(magnitudes: Floats, thresholds: Floats, weights: list[Floats]) -> list[Floats]:
    """For each sorted threshold: how many magnitudes lie within it, and the sum of each weight over those."""
    cell = np.searchsorted(thresholds, magnitudes, side="left")
    sums = [np.bincount(cell, weights=w, minlength=thresholds.size + 1) for w in [None, *weights]]
    return [np.cumsum(each)[:-1].astype(np.float64) for each in sums]
