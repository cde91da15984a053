"""The noise of SGO's mechanisms, Gaussian and Laplace, with the quantities that the theorems need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_epsilon
from sparsedp.mechanisms import gaussian, gaussian_std, laplace
from sparsedp.randomness import Stream

DEFAULT_BETA = 0.05
"""How often an error bound, or a setting made for one, may fail."""
_CHUNK = 2**18


class Noise(Protocol):
    """Independent noise of one scale on every coordinate."""

    @property
    def scale(self) -> float:
        """The parameter of the law: a standard deviation, or the scale of a Laplace."""
        ...

    def add(self, values: F64, stream: Stream) -> F64:
        """The values with noise, on a public grid."""
        ...

    def largest(self, d: int, beta: float) -> float:
        """What the largest of d magnitudes stays below, but for probability ``beta``."""
        ...

    def norm(self, d: int, beta: float) -> float:
        """What the l2 norm in d dimensions stays below, but for probability ``beta``."""
        ...

    @property
    def variance(self) -> float:
        """Of the noise on one coordinate."""
        ...

    def passing(self, magnitudes: F64, thresholds: F64) -> F64:
        """How many magnitudes count as passing each (sorted) threshold, in an estimate of the risk."""
        ...

    def beyond(self, threshold: float) -> float:
        """P(|noise| > threshold)."""
        ...

    def excess(self, threshold: float) -> float:
        """E max(|noise| - threshold, 0)."""
        ...

    def square_excess(self, thresholds: F64) -> F64:
        """E max(|noise| - threshold, 0)^2, the risk of soft thresholding pure noise."""
        ...

    def risk_allowance(self, d: int, thresholds: F64, chance: float) -> F64:
        """By how much chance may improve the estimated risk of a threshold on pure noise.

        Bernstein's bound at probability ``chance`` on the sum of d times ``max(noise^2 - t^2, 0)``, less its mean.
        """
        ...


@dataclass(frozen=True)
class GaussianNoise:
    """N(0, std^2) on every coordinate."""

    std: float

    @classmethod
    def calibrated(cls, l2_sensitivity: float, epsilon: float, delta: float) -> GaussianNoise:
        """The least noise that makes a release of this l2 sensitivity (epsilon, delta)-DP."""
        return cls(gaussian_std(sensitivity=l2_sensitivity, epsilon=epsilon, delta=delta))

    @property
    def scale(self) -> float:
        """The standard deviation."""
        return self.std

    def add(self, values: F64, stream: Stream) -> F64:
        """The Gaussian mechanism, a chunk at a time so that no more than a chunk is held twice."""
        return _in_chunks(values, lambda chunk: gaussian(chunk, std=self.std, stream=stream))

    def largest(self, d: int, beta: float) -> float:
        """By the union over d coordinates of two tails each."""
        return -self.std * float(ndtri(beta / (2 * d)))

    def norm(self, d: int, beta: float) -> float:
        """The norm is 1-Lipschitz in the noise, so it passes its mean by sqrt(2 ln(1/beta)) std at most."""
        return self.std * (math.sqrt(d) + math.sqrt(2 * math.log(1 / beta)))

    @property
    def variance(self) -> float:
        """The square of the standard deviation."""
        return self.std**2

    def passing(self, magnitudes: F64, thresholds: F64) -> F64:
        """Those that do: with y = x + noise, ``E noise g(y) = std^2 E g'(y)`` (Stein)."""
        return np.asarray(magnitudes.size - below(magnitudes, thresholds, [])[0])

    def beyond(self, threshold: float) -> float:
        """Two tails."""
        return 2 * float(ndtr(-threshold / self.std))

    def excess(self, threshold: float) -> float:
        """2 (phi(a) - a Q(a)) in units of the standard deviation, a = threshold / std."""
        a = threshold / self.std
        return 2 * self.std * (math.exp(-a * a / 2) / math.sqrt(2 * math.pi) - a * float(ndtr(-a)))

    def square_excess(self, thresholds: F64) -> F64:
        """2 ((1 + a^2) Q(a) - a phi(a)), likewise."""
        a, density, tail = self._tails(thresholds)
        return np.asarray(2 * self.variance * np.maximum((1 + a**2) * tail - a * density, 0.0))

    def risk_allowance(self, d: int, thresholds: F64, chance: float) -> F64:
        """The terms, less 2 std^2 where they are not zero, have moments in phi and Q; their tails are 2 std^2 Exp."""
        a, density, tail = self._tails(thresholds)
        level = a**2 + 2
        squares, fourths = 2 * (a * density + tail), 2 * ((a**3 + 3 * a) * density + 3 * tail)
        mean = squares - 2 * level * tail
        spread = fourths - 2 * level * squares + 2 * level**2 * tail - mean**2
        return np.asarray(self.variance * _bernstein(d * np.maximum(spread, 0.0), 2.0, chance))

    def _tails(self, thresholds: F64) -> tuple[F64, F64, F64]:
        a = thresholds / self.std
        return a, np.exp(-(a**2) / 2) / math.sqrt(2 * math.pi), ndtr(-a)


@dataclass(frozen=True)
class LaplaceNoise:
    """Laplace of scale ``scale`` on every coordinate."""

    scale: float

    @classmethod
    def calibrated(cls, l1_sensitivity: float, epsilon: float) -> LaplaceNoise:
        """The least noise that makes a release of this l1 sensitivity epsilon-DP."""
        return cls(l1_sensitivity / check_epsilon(epsilon))

    def add(self, values: F64, stream: Stream) -> F64:
        """The Laplace mechanism, a chunk at a time."""
        return _in_chunks(values, lambda chunk: laplace(chunk, scale=self.scale, stream=stream))

    def largest(self, d: int, beta: float) -> float:
        """By the union over d coordinates of exponential tails."""
        return self.scale * math.log(d / beta)

    def norm(self, d: int, beta: float) -> float:
        """Chebyshev on the sum of squares (mean 2d, variance 20d), or sqrt(d) times the largest."""
        chebyshev = self.scale * math.sqrt(2 * d + math.sqrt(20 * d / beta))
        return min(chebyshev, math.sqrt(d) * self.largest(d, beta))

    @property
    def variance(self) -> float:
        """Twice the square of the scale."""
        return 2 * self.scale**2

    def passing(self, magnitudes: F64, thresholds: F64) -> F64:
        """Each with the probability that it would with fresh noise on top.

        Proof: with y = x + noise and p the density, the Fourier transforms of p and of u p(u) give
        ``E noise g(y) = variance E (p * g')(y)``; where g is a soft threshold, g' says whether y passes.
        """
        y, t = magnitudes / self.scale, thresholds / self.scale
        decay = np.exp(-y)
        growth = np.cosh(np.minimum(y, t[-1]))  # only needed below a threshold
        within, growths, decays = below(magnitudes, thresholds, [growth, decay])
        inside = within - np.exp(-t) * growths + np.sinh(t) * (decay.sum() - decays)
        return np.asarray(magnitudes.size - inside)

    def beyond(self, threshold: float) -> float:
        """e^(-t/b)."""
        return math.exp(-threshold / self.scale)

    def excess(self, threshold: float) -> float:
        """b e^(-t/b)."""
        return self.scale * math.exp(-threshold / self.scale)

    def square_excess(self, thresholds: F64) -> F64:
        """2 b^2 e^(-t/b)."""
        return np.asarray(2 * self.scale**2 * np.exp(-thresholds / self.scale))

    def risk_allowance(self, d: int, thresholds: F64, chance: float) -> F64:
        """The terms are (t + b Exp)^2 - t^2 with probability e^(-t/b); their tails are 2 t b Exp."""
        a = thresholds / self.scale
        tail = np.exp(-a)
        spread = tail * (8 * a**2 + 24 * a + 24) - (tail * (2 * a + 2)) ** 2
        return np.asarray(self.scale**2 * _bernstein(d * spread, 2 * np.maximum(a, 1.0), chance))


def _bernstein(variance: F64, tail: F64 | float, chance: float) -> F64:
    certainty = math.log(1 / chance)
    return np.asarray(np.sqrt(2 * certainty * variance) + certainty * tail)


def _in_chunks(values: F64, add: Callable[[F64], F64]) -> F64:
    noisy = np.empty_like(values)
    for start in range(0, values.size, _CHUNK):
        noisy[start : start + _CHUNK] = add(values[start : start + _CHUNK])
    return noisy


def below(magnitudes: F64, thresholds: F64, weights: list[F64]) -> list[F64]:
    """For each sorted threshold: how many magnitudes lie within it, and the sum of each weight over those."""
    cell = np.searchsorted(thresholds, magnitudes, side="left")
    sums = [np.bincount(cell, weights=w, minlength=thresholds.size + 1) for w in [None, *weights]]
    return [np.cumsum(each)[:-1].astype(np.float64) for each in sums]
