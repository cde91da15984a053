"""A composition seen from one neighbour, on grids as fine as the question needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from sparsedp.accounting.grid import MAX_POINTS, GridTooLarge, TiltedLoss, compose_self, convolve, discretise
from sparsedp.accounting.pairs import Pair
from sparsedp.accounting.sketch import Sketch

Pairs: TypeAlias = list[tuple[Pair, int]]

_FINEST, _COARSEST = 2.0**-36, 2.0**10
_UNPLACED = 1e-6  # the part of delta that may go to losses off the grid
_ROUNDING = 1e-4  # the part of delta that may drown in the rounding of the FFT
_FFT_NOISE = 4e-16


@dataclass(frozen=True)
class Direction:
    """The product of `pairs`, P first or (when `reverse`) Q first, prepared to resolve one delta at about one epsilon.

    `tilt` is what the FFT needs to see that delta, `log_negligible` the tilted mass (ln) that does not matter there,
    and `decay` the rate at which delta falls off there.
    """

    pairs: Pairs
    reverse: bool
    tail: float
    sketch: Sketch
    tilt: float
    log_negligible: float
    decay: float

    @classmethod
    def towards(
        cls, pairs: Pairs, *, reverse: bool, epsilon: float, log_delta: float, saddle: float, decay: float
    ) -> Direction:
        """Prepare for deltas of about e^log_delta at about `epsilon`, where the tilt `saddle` centres the losses."""
        count = sum(times for _, times in pairs)
        tail = max(_UNPLACED * math.exp(log_delta) / count, 1e-290)
        sketch = Sketch.of(pairs, tail, reverse=reverse)
        log_noise = math.log(_FFT_NOISE * count / _ROUNDING) - log_delta
        tilt = sketch.gentle_tilt(saddle, epsilon, log_noise)
        level = math.log(_UNPLACED) + log_delta + tilt * epsilon - sketch.log_mgf(tilt)
        return cls(pairs, reverse, tail, sketch, tilt, min(level, -10.0), decay)

    def steps(self, tolerance: float) -> list[float]:
        """For each part the widest grid that, by the sketch's estimate, moves epsilon by `tolerance` at most in all."""
        widest = _COARSEST
        # Parts composed on finer grids are brought to a common one, which rounds each of them once more.
        while len(self.pairs) > 1 and (1 + self.decay) * len(self.pairs) * widest**2 / 12 > tolerance / 2:
            widest /= 2
        share = tolerance / (2 * len(self.pairs))
        return [self._step(i, share, widest) for i in range(len(self.pairs))]

    def _step(self, i: int, tolerance: float, widest: float) -> float:
        part = self.sketch.parts[i]
        low, high = self.pairs[i][0].span(self.tail)
        narrowest = max(_FINEST, 4 * (high - low) / MAX_POINTS)
        step = widest
        # Rounding that keeps P- and Q-mass and adds a variance v moves a tail e^(-decay loss) by (1 + decay) v / 2.
        while step / 2 > narrowest and (1 + self.decay) / 2 * part.rounding(self.tilt, step) > tolerance:
            step /= 2
        return step

    def compose(self, steps: list[float]) -> TiltedLoss:
        """The composition with part i discretised on steps[i], all then brought to the widest of them."""
        parts = []
        for (pair, count), step in zip(self.pairs, steps, strict=True):
            loss = discretise(pair, step, self.tail)
            loss = loss.reversed() if self.reverse else loss
            composed = compose_self(loss, count, self.tilt, self.log_negligible)
            parts.append(composed.coarsened(round(max(steps) / step)))
        return convolve(parts)

    def compose_affordably(self, steps: list[float]) -> tuple[TiltedLoss, list[float]]:
        """The composition on `steps`, or on the least power-of-two multiple of them that is not too large."""
        while True:
            try:
                return self.compose(steps), steps
            except GridTooLarge:
                steps = [2 * step for step in steps]


def halved(steps: list[float]) -> list[float]:
    """The next finer grids."""
    return [max(step / 2, _FINEST) for step in steps]
