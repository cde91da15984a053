"""A quick estimate of a composition: the range of its losses, how to tilt them, and the grid they need.

Nothing that is reported rests on a sketch: it only chooses the tilt and the grid of the rigorous computation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from sparsedp.accounting.pld.pairs import Pair, Unresolved
from sparsedp.core.arrays import F64, weighted_sum

_TINY = 1e-290
_LOG_TILTS = np.log(10.0) * np.linspace(-4, 12, 49)


@dataclass(frozen=True, eq=False)
class Part:
    """The losses of one pair with their P-masses, and how many copies of it there are."""

    losses: F64
    log_p: F64
    count: int

    def log_mgf(self, tilt: float) -> float:
        """ln E_P e^(tilt loss) of one copy."""
        exponent = self.log_p + tilt * self.losses
        top = float(exponent.max())
        return top + math.log(float(np.exp(exponent - top).sum()))

    def tilted(self, tilt: float) -> F64:
        """The masses, tilted and normalised."""
        exponent = self.log_p + tilt * self.losses
        masses = np.exp(exponent - exponent.max())
        return np.asarray(masses / masses.sum(), dtype=np.float64)

    def rounding(self, tilt: float, step: float) -> float:
        """The variance that rounding all copies to a grid adds: the mean of (loss - low)(high - loss) in a cell."""
        within = np.mod(self.losses, step)
        return self.count * weighted_sum(self.tilted(tilt), within * (step - within))


@dataclass(frozen=True, eq=False)
class Sketch:
    """A composition of parts, in one direction."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, pairs: Sequence[tuple[Pair, int]], tail: float, *, reverse: bool = False) -> Sketch:
        """Sketch (P, Q), or (Q, P) when `reverse`."""
        return cls(tuple(_part(pair, count, tail, reverse) for pair, count in pairs))

    def log_mgf(self, tilt: float) -> float:
        """ln E_P e^(tilt loss) of the whole composition."""
        return sum(part.count * part.log_mgf(tilt) for part in self.parts)

    def moments(self, tilt: float) -> tuple[float, float]:
        """Mean and variance of the tilted composition."""
        mean = variance = 0.0
        for part in self.parts:
            weights = part.tilted(tilt)
            centre = weighted_sum(weights, part.losses)
            mean += part.count * centre
            variance += part.count * weighted_sum(weights, (part.losses - centre) ** 2)
        return mean, variance

    def tilt_for_delta(self, delta: float) -> tuple[float, float]:
        """The tilt at which epsilon(delta) is decided, and a Renyi estimate of that epsilon (zero: tilt 0).

        With order 1 + tilt, the conversion of Canonne, Kamath and Steinke (2020, proposition 12).
        """

        def renyi(log_tilt: float) -> float:
            tilt = math.exp(log_tilt)
            slack = -math.log(delta) + tilt * math.log(tilt / (1 + tilt)) - math.log1p(tilt)
            return (self.log_mgf(tilt) + slack) / tilt

        tilt, epsilon = _minimum(renyi)
        return (tilt, epsilon) if epsilon > 0 else (0.0, 0.0)

    def tilt_for_epsilon(self, epsilon: float) -> tuple[float, float]:
        """The tilt at which delta(epsilon) is decided, and an estimate of ln delta."""

        def log_delta(log_tilt: float) -> float:
            tilt = math.exp(log_tilt)
            slack = tilt * math.log(tilt / (1 + tilt)) - math.log1p(tilt)
            return self.log_mgf(tilt) + slack - tilt * epsilon

        return _minimum(lambda log_tilt: max(log_delta(log_tilt), -690.0))  # a float's smallest delta

    def activity(self, steps: Sequence[float]) -> float:
        """The approximate number of copies off their most likely grid point, which an FFT rounds; 0 without FFT."""
        if len(self.parts) == 1 and self.parts[0].count == 1:
            return 0.0
        moved = (
            part.count * weighted_sum(np.exp(part.log_p), np.minimum(np.abs(part.losses) / step, 1.0))
            for part, step in zip(self.parts, steps, strict=True)
        )
        return 1 + sum(moved)

    def gentle_tilt(self, saddle: float, epsilon: float, log_noise: float) -> float:
        """Approximately the least tilt at which noise of e^log_noise, relative to the bulk, does not matter.

        Noise in tilted masses is felt at `epsilon` times e^(K(tilt) - tilt epsilon), which falls until the
        saddle. Less tilt means lighter upper tails, hence a smaller window: so no more than needed, or than
        has an effect.
        """
        if log_noise <= 0:
            return 0.0
        enough = max(-log_noise, self.log_mgf(saddle) - saddle * epsilon + 1)
        low, high = 0.0, saddle
        for _ in range(6):
            middle = (low + high) / 2
            if self.log_mgf(middle) - middle * epsilon <= enough:
                high = middle
            else:
                low = middle
        return high

    def window(self, tail: float) -> tuple[float, float]:
        """Losses (low, high) with Q-mass below and P-mass above of about `tail`, by Chernoff bounds."""
        scale = 1 / math.sqrt(max(self.moments(0.0)[1], 1e-300))
        budget = -math.log(tail)
        tilts = [scale * 2.0**j for j in range(-6, 9)]
        high = min((self.log_mgf(tilt) + budget) / tilt for tilt in tilts)
        # Under Q the losses have log-mgf K(tilt - 1).
        low = max(-(self.log_mgf(-1 - tilt) + budget) / tilt for tilt in tilts)
        ends = [(part.count * part.losses[0], part.count * part.losses[-1]) for part in self.parts]
        return max(low, sum(end[0] for end in ends)), min(high, sum(end[1] for end in ends))

    def ladder(self, low: float, high: float, reach: float) -> Iterator[float]:
        """Tilts, their means about `reach` standard deviations apart, that cover the losses from `low` to `high`."""
        for direction in (-1, 1):
            tilt = -0.5  # the middle: a symmetric pair is centred by it
            for _ in range(200):
                mean, variance = self.moments(tilt)
                std = math.sqrt(max(variance, 1e-300))
                if direction < 0 or tilt > -0.5:
                    yield tilt
                if direction * mean + reach * std >= (high if direction > 0 else -low):
                    break
                tilt += direction * reach / std


def _part(pair: Pair, count: int, tail: float, reverse: bool) -> Part:
    edges = pair.sketch(tail)
    p, q = pair.cells(edges)
    both = (p > _TINY) & (q > _TINY)
    # Where P and Q are so far apart that a mass underflows, the cell itself tells the loss.
    losses = np.concatenate([edges[:1], (edges[:-1] + edges[1:]) / 2, edges[-1:]])
    losses[both] = np.log(p[both]) - np.log(q[both])
    if reverse:
        p, losses, both = q[::-1], -losses[::-1], both[::-1]
    nonzero = p > _TINY
    nonzero[[0, -1]] = both[[0, -1]]
    if not nonzero.any():
        raise Unresolved
    return Part(losses[nonzero], np.log(p[nonzero]), count)


def _minimum(objective: Callable[[float], float]) -> tuple[float, float]:
    """Where, over all tilts, a function of ln tilt is least, and that value."""
    values = [objective(log_tilt) for log_tilt in _LOG_TILTS]
    best = int(np.argmin(values))
    low, high = _LOG_TILTS[max(best - 1, 0)], _LOG_TILTS[min(best + 1, len(values) - 1)]
    minimum = minimize_scalar(objective, bounds=(low, high), method="bounded", options={"xatol": 1e-2})
    if minimum.fun < values[best]:
        return math.exp(float(minimum.x)), float(minimum.fun)
    return math.exp(float(_LOG_TILTS[best])), values[best]
