"""Composed privacy losses, tilted so that the losses which decide the answer are the bulk.

Tilting multiplies the mass at a loss by e^(tilt loss). It commutes with composition, and it makes the
rounding errors of an FFT relative to the delta asked for instead of relative to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft

from sparsedp.accounting.pld.pairs import Unresolved
from sparsedp.core.arrays import F64, weighted_sum, weighted_sums

MAX_POINTS = 1 << 21
"""No grid is longer than this."""

_BLOCKS = 1000
_RATES: F64 = np.exp2(np.arange(-15, 7))
_LARGE = 300.0
_LOG_NOTHING = -60.0


class GridTooLarge(Unresolved):
    """A composition would need more than `MAX_POINTS` grid points."""


@dataclass(frozen=True, eq=False)
class TiltedLoss:
    """P-mass `weights[i] exp(log_scale - tilt * loss)` at loss `step * (first + i)`; the weights add to 1.

    `infinity` bounds the P-mass that is not on the grid. Below the grid there may be mass too: nothing is
    said of epsilons there.
    """

    step: float
    first: int
    weights: F64
    log_scale: float
    tilt: float
    infinity: float

    @cached_property
    def losses(self) -> F64:
        """The grid points."""
        return self.step * (self.first + np.arange(len(self.weights), dtype=np.float64))

    def delta_at(self, epsilon: float) -> float:
        """An upper bound on the delta at `epsilon`; 1 below the grid."""
        if epsilon < self.losses[0]:
            return 1.0
        above = int(np.searchsorted(self.losses, epsilon, side="right"))
        gap = self.losses[above:] - epsilon
        mass = weighted_sum(self.weights[above:], np.exp(-self.tilt * gap) * -np.expm1(-gap))
        log_mass = self.log_scale - self.tilt * epsilon + math.log(mass) if mass > 0 else -math.inf
        return min(1.0, self.infinity + math.exp(min(log_mass, 0.0)))

    def deltas_at(self, epsilons: F64) -> F64:
        """`delta_at` each of ascending epsilons >= 0, of losses without a tilt, in one pass over the grid.

        With epsilon rising by a gap, 1 - e^(epsilon - loss) falls by (1 - e^-gap) e^(next epsilon - loss): deltas are
        added up from the last epsilon to the first, all terms positive.
        """
        assert self.tilt == 0
        edges = np.append(np.searchsorted(self.losses, epsilons, side="right"), len(self.losses))
        mass = self.weights * math.exp(self.log_scale)
        deltas = np.full(len(epsilons), self.infinity)
        total = later = next_epsilon = (
            0.0  # delta, and the mass times e^(epsilon - loss), at the next epsilon
        )
        for i in range(len(epsilons) - 1, -1, -1):
            fall = math.exp(epsilons[i] - next_epsilon) if i + 1 < len(epsilons) else 0.0
            gap = self.losses[edges[i] : edges[i + 1]] - epsilons[i]
            between = mass[edges[i] : edges[i + 1]]
            total += (1 - fall) * later + weighted_sum(between, -np.expm1(-gap))
            later = fall * later + weighted_sum(between, np.exp(-gap))
            next_epsilon = float(epsilons[i])
            deltas[i] += total
        deltas[epsilons < self.losses[0]] = 1.0
        return np.asarray(np.minimum(deltas, 1.0), dtype=np.float64)

    def epsilon_at(self, delta: float) -> float:
        """An upper bound on the least epsilon >= 0 with delta at most `delta`; infinite if `infinity` passes it."""
        if self.infinity >= delta:
            return math.inf
        start = max(float(self.losses[0]), 0.0)  # below the grid nothing is known
        above = int(np.searchsorted(self.losses, start, side="right"))
        losses = self.losses[above:]
        if not len(losses):
            return start
        # In units of the target and from the top: `upper` sums the masses, `lower` the same times e^(base -
        # loss).
        shift = self.log_scale - math.log(delta - self.infinity)
        # A large shift meets small weights: the limit is for their product.
        mass = np.exp(np.minimum(self._log_weights[above:] + shift - self.tilt * losses, _LARGE))
        upper = np.cumsum(mass[::-1])[::-1]
        base = float(losses[min(int(np.searchsorted(-upper, -1.0)), len(losses) - 1)])  # not below the answer
        lower = np.cumsum((mass * np.exp(np.minimum(base - losses, _LARGE)))[::-1])[::-1]
        # delta at a point counts what lies above it; the answer is just below the first grid point that
        # passes.
        points = np.minimum(np.concatenate([[start], losses[:-1]]), base)
        crossing = int(np.argmax(np.append(upper - np.exp(points - base) * lower <= 1, True))) - 1
        return start if crossing < 0 else max(start, base + math.log((upper[crossing] - 1) / lower[crossing]))

    def coarsened(self, factor: int) -> TiltedLoss:
        """The same on a grid `factor` times as wide, rounded like a pair is: P- and Q-mass are kept."""
        if factor == 1:
            return self
        wide = self.step * factor
        if abs(self.tilt) * wide > _LARGE:
            raise Unresolved
        start = self.first // factor
        offset = self.first - start * factor
        blocks = -(-(offset + len(self.weights)) // factor)
        padded = np.zeros(blocks * factor)
        padded[offset : offset + len(self.weights)] = self.weights
        within = self.step * np.arange(factor)
        up = np.expm1(-within) / math.expm1(-wide)
        block = padded.reshape(blocks, factor)
        weights = np.zeros(blocks + 1)
        weights[:-1] += weighted_sums((1 - up) * np.exp(-self.tilt * within), block)
        weights[1:] += weighted_sums(up * np.exp(self.tilt * (wide - within)), block)
        total = float(weights.sum())
        return TiltedLoss(
            wide, start, weights / total, self.log_scale + math.log(total), self.tilt, self.infinity
        )

    def repeated(
        self, count: int, log_negligible: float, log_unplaced: float, most: int = MAX_POINTS
    ) -> TiltedLoss:
        """`count` independent copies, if that takes no more than `most` points; else raises `GridTooLarge`.

        Tilted mass of e^log_negligible may leave the window at either end; the FFT wraps it round to the
        other end, where it only adds. From the top, where it is at most e^log_unplaced of P, it is counted
        as infinite loss besides.
        """
        if count == 1:
            return self
        low, high, log_beyond = self._window(count, log_negligible, log_unplaced)
        if high - low >= most:
            raise GridTooLarge
        size = fft.next_fast_len(max(high - low + 1, len(self.weights)), real=True)
        mode = int(np.argmax(self.weights))
        composed = np.roll(_power(self.weights, mode, count, size), (count * mode - low) % size)
        return TiltedLoss(
            self.step,
            count * self.first + low,
            np.maximum(composed[: high - low + 1], 0.0),
            count * self.log_scale,
            self.tilt,
            min(1.0, count * self.infinity + math.exp(min(log_beyond, 0.0))),
        )

    def _window(self, count: int, log_negligible: float, log_unplaced: float) -> tuple[int, int, float]:
        """Offsets (low, high) on the composed grid, and ln of a bound on the P-mass above `high`.

        Chernoff: with growth g(s) = ln sum weights e^(s loss), tilted mass above h is at most exp(count
        g(s) - s h) for every s > 0, and P-mass at most e^(scale - tilt h) times that. The s are chosen on
        weights gathered into blocks; the bounds are then computed from all of them.
        """
        index = np.arange(len(self.weights), dtype=np.float64)
        starts = np.arange(0, len(self.weights), -(-len(self.weights) // _BLOCKS))
        mass = np.add.reduceat(self.weights, starts)
        moment = np.add.reduceat(self.weights * index, starts)
        mean = float(moment.sum())
        std = math.sqrt(max(count * weighted_sum(self.weights, (index - mean) ** 2), 1e-9))
        away = np.where(mass > 0, moment / np.maximum(mass, 1e-300), mean) - mean
        low, high = 0.0, float(count * (len(self.weights) - 1))
        rate = _best_rate(-_RATES / std, away, mass, count, log_negligible)
        low = max(low, math.floor(count * mean + (count * self._growth(rate, mean) - log_negligible) / rate))
        rate = _best_rate(_RATES / std, away, mass, count, log_negligible)
        growth = count * self._growth(rate, mean)
        above = (growth - log_negligible) / rate
        # In P-mass: count log_scale - tilt * loss + growth - rate * (above), with loss = origin + step *
        # above.
        slope = self.tilt * self.step
        origin = count * (self.log_scale - slope * (self.first + mean))
        above = max(above, (origin + growth - log_unplaced) / (rate + slope))
        if count * mean + above >= high:
            return int(low), int(high), -math.inf
        high = math.ceil(count * mean + above)
        log_beyond = origin + growth - (rate + slope) * (high - count * mean)
        return int(min(low, math.floor(mean * count))), int(high), log_beyond

    @cached_property
    def _log_weights(self) -> F64:
        with np.errstate(divide="ignore"):
            return np.log(self.weights)

    def _growth(self, rate: float, mean: float) -> float:
        """ln of the mean of e^(rate (index - mean)) over the weights."""
        exponents = self._log_weights + rate * (np.arange(len(self.weights)) - mean)
        top = float(exponents.max())
        return top + math.log(float(np.exp(exponents - top).sum()))


def _best_rate(rates: F64, away: F64, mass: F64, count: int, log_negligible: float) -> float:
    """The rate whose Chernoff bound is the nearest, for `mass` at distances `away` from the mean."""
    exponents = np.outer(rates, away)
    top = exponents.max(axis=1)
    growth = top + np.log(np.maximum(weighted_sums(mass, np.exp(exponents - top[:, None])), 1e-300))
    return float(rates[np.argmin((count * growth - log_negligible) / np.abs(rates))])


def _power(weights: F64, mode: int, count: int, size: int) -> F64:
    """The weights convolved with themselves `count` times, modulo `size`, with index 0 for `count * mode`.

    The heaviest weight p stands apart: with z the FFT of the others over p, what is transformed back is
    p^count ((1 + z)^count - 1). Where nearly all the weight is on one point, the rounding of both
    transforms is then as small as the rest of it, and not as large as 1.
    """
    rest = np.zeros(size)
    rest[: len(weights) - mode] = weights[mode:]
    rest[size - mode :] = weights[:mode]
    heaviest, rest[0] = rest[0], 0.0
    z = fft.rfft(rest) / heaviest
    stays = count * math.log(heaviest)
    with np.errstate(divide="ignore"):
        growth = 0.5 * count * np.log1p(np.maximum(z.real * (2 + z.real) + np.square(z.imag), -1.0))
    angle = count * np.arctan2(z.imag, 1 + z.real)
    if stays < _LOG_NOTHING:
        matters = growth + stays > _LOG_NOTHING  # few frequencies, for a large count
        result = np.zeros_like(z)
        result[matters] = np.exp(growth[matters] + stays + 1j * angle[matters])
        return np.asarray(fft.irfft(result, size))
    # (1 + z)^count - 1 as the expm1 of a complex number.
    difference = (
        np.expm1(growth) * np.cos(angle)
        - 2 * np.square(np.sin(angle / 2))
        + 1j * np.exp(growth) * np.sin(angle)
    )
    composed = np.asarray(fft.irfft(math.exp(stays) * difference, size))
    composed[0] += math.exp(stays)
    return composed


def convolve(parts: Sequence[TiltedLoss]) -> TiltedLoss:
    """Independent losses on one grid and of one tilt, added."""
    if len(parts) == 1:
        return parts[0]
    length = sum(len(part.weights) for part in parts) - len(parts) + 1
    if length > MAX_POINTS:
        raise GridTooLarge
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
