"""Privacy losses on a grid: discretised upwards, tilted, composed by FFT, and read off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from sparsedp.accounting.pairs import Array, Pair

MAX_POINTS = 1 << 22
"""No grid is longer than this."""

_BLOCKS = 1000


@dataclass(frozen=True, eq=False)
class GridLoss:
    """Losses at `step * (first + i)` with P-mass `p[i]`, plus `infinity` (P alone) and `minus_infinity` (Q alone).

    Guarantee: made by `discretise`, it dominates the pair in both directions. Its delta at the grid points is that of
    the pair, and between them interpolates linearly in e^epsilon, above the pair's convex curve ("connect the dots",
    Doroshenko et al. 2022).
    """

    step: float
    first: int
    p: Array
    infinity: float
    minus_infinity: float

    @cached_property
    def losses(self) -> Array:
        """The grid points."""
        return self.step * (self.first + np.arange(len(self.p)))

    @cached_property
    def log_p(self) -> Array:
        """ln p."""
        with np.errstate(divide="ignore"):
            return np.log(self.p)

    def reversed(self) -> GridLoss:
        """P and Q exchanged."""
        q = self.p * np.exp(-self.losses)
        return GridLoss(self.step, 1 - self.first - len(q), q[::-1].copy(), self.minus_infinity, self.infinity)

    def tilted(self, tilt: float) -> tuple[float, Array]:
        """ln sum p e^(tilt loss), and the masses p e^(tilt loss) divided by that sum."""
        exponent = self.log_p + tilt * self.losses
        top = float(exponent.max())
        masses = np.exp(exponent - top)
        total = float(masses.sum())
        return top + math.log(total), masses / total


def discretise(pair: Pair, step: float, tail: float) -> GridLoss:
    """Put a pair on the grid of multiples of `step`; P-mass above its span (at most `tail`) may become infinite loss.

    A cell's masses (p, q) move to its two ends so that both P and Q keep them: `upper + lower = p` and
    `upper e^-high + lower e^-low = q`. Clipping `upper` to [0, p] only guards against rounding.
    """
    low, high = pair.span(tail)
    first = math.floor(low / step)
    edges = step * np.arange(first, math.ceil(high / step) + 1, dtype=np.float64)
    p, q = pair.cells(edges)
    upper = np.clip((p[1:-1] - q[1:-1] * np.exp(edges[:-1])) / -math.expm1(-step), 0, p[1:-1])
    masses = np.zeros(len(edges))
    masses[1:] += upper
    masses[:-1] += p[1:-1] - upper
    kept = min(float(p[-1]), float(q[-1]) * math.exp(min(edges[-1], 700.0)))
    masses[-1] += kept
    masses[0] += p[0]
    below = max(float(q[0]) - float(p[0]) * math.exp(min(-edges[0], 700.0)), 0.0)
    return GridLoss(step, first, masses, float(p[-1]) - kept, below)


@dataclass(frozen=True, eq=False)
class TiltedLoss:
    """A composed loss, P-mass `weights[i] exp(log_scale - tilt * loss)` at loss `step * (first + i)`.

    Tilting moves the bulk to where the answer lies, so that the FFT's rounding is relative to the delta asked for and
    not to 1. `infinity` bounds the P-mass that is not on the grid.
    """

    step: float
    first: int
    weights: Array
    log_scale: float
    tilt: float
    infinity: float

    @cached_property
    def losses(self) -> Array:
        """The grid points."""
        return self.step * (self.first + np.arange(len(self.weights)))

    def coarsened(self, factor: int) -> TiltedLoss:
        """The same on a grid `factor` times as wide, again pessimistically and in both P- and Q-mass exact."""
        if factor == 1:
            return self
        wide = self.step * factor
        start = self.first // factor
        offset = self.first - start * factor
        blocks = -(-(offset + len(self.weights)) // factor)
        padded = np.zeros(blocks * factor)
        padded[offset : offset + len(self.weights)] = self.weights
        within = self.step * np.arange(factor)
        up = -np.expm1(-within) / -math.expm1(-wide)
        block = padded.reshape(blocks, factor)
        weights = np.zeros(blocks + 1)
        weights[:-1] += block @ ((1 - up) * np.exp(-self.tilt * within))
        weights[1:] += block @ (up * np.exp(self.tilt * (wide - within)))
        total = float(weights.sum())
        return TiltedLoss(
            wide, start, weights / total, self.log_scale + math.log(total), self.tilt, self.infinity
        )

    def delta_at(self, epsilon: float) -> float:
        """An upper bound on the delta at `epsilon`; 1 below the grid, of which nothing is known."""
        if epsilon < self.losses[0]:
            return 1.0
        above = self.losses > epsilon
        gap = self.losses[above] - epsilon
        mass = float(self.weights[above] @ (np.exp(-self.tilt * gap) * -np.expm1(-gap)))
        log_mass = self.log_scale - self.tilt * epsilon + math.log(mass) if mass > 0 else -math.inf
        return min(1.0, self.infinity + math.exp(min(log_mass, 0.0)))

    def epsilon_at(self, delta: float) -> float:
        """An upper bound on the least epsilon >= 0 with delta at most `delta`; infinite where `infinity` passes it."""
        if self.infinity >= delta:
            return math.inf
        start = max(float(self.losses[0]), 0.0)  # below the grid nothing is known
        above = int(np.searchsorted(self.losses, start, side="right"))
        losses, weights = self.losses[above:], self.weights[above:]
        if not len(losses):
            return start
        # In units of the target, from the top: `upper` sums the masses at or above a loss, `lower` the same times e^-loss.
        shift = self.log_scale - math.log(delta - self.infinity)
        mass = weights * np.exp(np.minimum(shift - self.tilt * losses, 600.0))
        base = float(losses[-1])
        upper = np.cumsum(mass[::-1])[::-1]
        lower = np.cumsum((mass * np.exp(np.minimum(base - losses, 600.0)))[::-1])[::-1]
        # delta at a point counts what lies above it; the answer is just below the first grid point that passes.
        points = np.concatenate([[start], losses[:-1]])
        passes = np.append(upper - np.exp(points - base) * lower, 0.0) <= 1
        crossing = int(np.argmax(passes)) - 1
        return start if crossing < 0 else max(start, base + math.log((upper[crossing] - 1) / lower[crossing]))


class GridTooLarge(Exception):
    """A composition would need more grid points than `MAX_POINTS`."""


def compose_self(loss: GridLoss, count: int, tilt: float, log_negligible: float = -28.0) -> TiltedLoss:
    """`count` independent copies of `loss`, tilted by `tilt`.

    Tilted mass of up to e^log_negligible may leave the window at either end. The FFT wraps it round to the other end,
    which only adds mass there; from the top it is also counted in `infinity`.
    """
    log_mgf, weights = loss.tilted(tilt)
    infinity = -math.expm1(count * math.log1p(-loss.infinity)) if loss.infinity < 1 else 1.0
    if count == 1:
        return TiltedLoss(loss.step, loss.first, weights, log_mgf, tilt, infinity)
    low, high = _window(loss, tilt, log_mgf, weights, count, log_negligible)
    if high - low >= MAX_POINTS:
        raise GridTooLarge
    size = fft.next_fast_len(max(high - low + 1, len(weights)), real=True)
    centre = round(float(weights @ np.arange(len(weights))))
    around = np.zeros(size)  # the mean at index 0, so that phases stay small under the power
    around[: len(weights) - centre] = weights[centre:]
    around[size - centre :] = weights[:centre]
    composed = fft.irfft(_power(fft.rfft(around), count), size)
    composed = np.maximum(np.roll(composed, (count * centre - low) % size)[: high - low + 1], 0.0)
    log_scale = count * log_mgf
    beyond = log_negligible + log_scale - tilt * loss.step * (count * loss.first + high)
    infinity += math.exp(min(beyond, 0.0)) if high < count * (len(weights) - 1) else 0.0
    return TiltedLoss(loss.step, count * loss.first + low, composed, log_scale, tilt, infinity)


def _power(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """spectrum ** count, computed only where it is not negligible: at few frequencies, for a large count."""
    magnitude = np.square(spectrum.real) + np.square(spectrum.imag)
    matters = magnitude > math.exp(-140.0 / count)
    result = np.zeros_like(spectrum)
    result[matters] = np.exp(count * np.log(spectrum[matters]))
    return result


def _window(
    loss: GridLoss, tilt: float, log_mgf: float, weights: Array, count: int, log_negligible: float
) -> tuple[int, int]:
    """Grid offsets outside of which the tilted composition has mass at most e^log_negligible on either side.

    Chernoff: the mass above h is at most exp(count (K(tilt + s) - K(tilt)) - s h) for every s > 0, likewise below. The
    s to use are found on the weights gathered into blocks; the bounds are then computed from all of them.
    """
    blocks = np.arange(0, len(weights), -(-len(weights) // _BLOCKS))
    mass = np.add.reduceat(weights, blocks)
    index = np.arange(len(weights), dtype=np.float64)
    with np.errstate(invalid="ignore"):
        centre = np.where(mass > 0, np.add.reduceat(weights * index, blocks) / mass, blocks)
    mean = float(mass @ centre)
    std = math.sqrt(max(count * float(weights @ (index - mean) ** 2), 1e-12))
    ends = [0.0, float(count * (len(weights) - 1))]
    for side, sign in enumerate((-1, 1)):
        rates = sign * np.exp2(np.arange(-30, 13) / 2) / std
        exponents = np.outer(rates, centre - mean)
        top = exponents.max(axis=1)
        growths = top + np.log(np.maximum(np.exp(exponents - top[:, None]) @ mass, 1e-300))
        s = float(rates[np.argmin((count * growths - log_negligible) / np.abs(rates))])
        growth = loss.tilted(tilt + s / loss.step)[0] - log_mgf - s * loss.first
        bound = (count * growth - log_negligible) / s
        ends[side] = max(ends[0], math.floor(bound)) if side == 0 else min(ends[1], math.ceil(bound))
    return int(min(ends[0], math.floor(mean * count))), int(max(ends[1], math.ceil(mean * count)))


def convolve(parts: Sequence[TiltedLoss]) -> TiltedLoss:
    """Independent losses on one grid and of one tilt, added."""
    if len(parts) == 1:
        return parts[0]
    length = sum(len(part.weights) for part in parts) - len(parts) + 1
    size = fft.next_fast_len(length, real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for part in parts:
        spectrum *= fft.rfft(part.weights, size)
    return TiltedLoss(
        parts[0].step,
        sum(part.first for part in parts),
        np.maximum(fft.irfft(spectrum, size)[:length], 0.0),
        sum(part.log_scale for part in parts),
        parts[0].tilt,
        min(1.0, sum(part.infinity for part in parts)),
    )
