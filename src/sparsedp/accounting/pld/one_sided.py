"""A composition seen from one neighbour, on grids as fine as the question needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from sparsedp.accounting.pld.grid import discretise
from sparsedp.accounting.pld.pairs import Pair
from sparsedp.accounting.pld.sketch import Sketch
from sparsedp.accounting.pld.tilted import MAX_POINTS, GridTooLarge, TiltedLoss, convolve

Pairs: TypeAlias = list[tuple[Pair, int]]

ROUNDING = 1e-4
"""The part of delta that may drown in the rounding of the FFT; answers allow for as much."""

_FINEST, _COARSEST = 2.0**-40, 1.0
_LOG_UNPLACED = math.log(1e-6)  # the part of delta that may go to losses off the grid
_FFT_NOISE = 4e-16  # of every copy that moves, as if all roundings had one sign
_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class Grids:
    """Each part is discretised on its own step, then composed, on the way being brought to `common`."""

    steps: tuple[float, ...]
    common: float

    def scaled(self, factor: float) -> Grids:
        """All steps multiplied, down to the finest there is."""
        return Grids(
            tuple(max(step * factor, _FINEST) for step in self.steps), max(self.common * factor, _FINEST)
        )


@dataclass(frozen=True)
class PldEstimate:
    """The product of `pairs`, P first or (when `reverse`) Q first, and a sketch of its losses.

    `tail` is the mass that a copy of a pair may have off its grid.
    """

    pairs: Pairs
    reverse: bool
    tail: float
    sketch: Sketch

    @classmethod
    def of(cls, pairs: Pairs, *, reverse: bool, log_delta: float) -> PldEstimate:
        """For questions about deltas of about e^log_delta."""
        count = sum(times for _, times in pairs)
        tail = max(math.exp(log_delta + _LOG_UNPLACED) / count, 1e-290)
        return cls(pairs, reverse, tail, Sketch.of(pairs, tail, reverse=reverse))

    def grids(self, *, epsilon: float, saddle: float, decay: float, tolerance: float) -> Grids:
        """The widest grids that, by the sketch's estimate, move epsilon by `tolerance` at most.

        Rounding that keeps P- and Q-mass and adds a variance v moves a tail e^(-decay loss) by (1 + decay)
        v / 2, and never by more than a step a copy; the losses that matter are those tilted by `saddle`.
        Half of the tolerance goes to rounding each copy to its step, half to rounding blocks of copies to
        the common one. No step is wide compared with epsilon, which would hide from all estimates what
        happens there.
        """
        blocks = sum(math.isqrt(count) + 1 for _, count in self.pairs)
        share, variance = tolerance / (2 * len(self.pairs)), tolerance / (1 + decay)
        spans = [pair.span(self.tail) for pair, _ in self.pairs]
        least = 4 * max(high - low for low, high in spans) / MAX_POINTS
        widest = max(epsilon / 16, math.sqrt(self.sketch.moments(0.0)[1]) / 1000, least)
        common = _power_of_two(min(max(math.sqrt(6 * variance / blocks), tolerance / (2 * blocks)), widest))
        steps = []
        for (_, count), (low, high), part in zip(self.pairs, spans, self.sketch.parts, strict=True):
            narrowest = max(_FINEST, 4 * (high - low) / MAX_POINTS, share / count)
            step = common if len(self.pairs) > 1 else _power_of_two(widest)
            while step / 2 > narrowest and part.rounding(saddle, step) > variance / len(self.pairs):
                step /= 2
            steps.append(step)
        return Grids(tuple(steps), max(common, *steps))


def _power_of_two(limit: float) -> float:
    return float(2.0 ** math.floor(math.log2(min(max(limit, _FINEST), _COARSEST))))


@dataclass(frozen=True)
class OneSidedPld:
    """An estimate with the grids that resolve one delta near one epsilon.

    `tilt` is what the FFT needs to see that delta, `log_negligible` the tilted mass (ln) that does not
    matter there, `log_unplaced` the P-mass that does not, and `log_magnified` (ln) what the FFT's rounding
    is multiplied by, relative to that delta.
    """

    estimate: PldEstimate
    grids: Grids
    tilt: float
    log_negligible: float
    log_unplaced: float
    log_magnified: float

    @classmethod
    def towards(
        cls, estimate: PldEstimate, grids: Grids, *, epsilon: float, log_delta: float, saddle: float
    ) -> OneSidedPld:
        """For deltas of about e^log_delta at about `epsilon`, where the tilt `saddle` centres the losses."""
        sketch = estimate.sketch
        relative = _FFT_NOISE * sketch.activity(grids.steps) / ROUNDING
        log_noise = math.log(relative) - log_delta if relative else -math.inf
        tilt = sketch.gentle_tilt(saddle, epsilon, log_noise)
        lift = tilt * epsilon - sketch.log_mgf(tilt)
        log_unplaced = log_delta + _LOG_UNPLACED
        return cls(estimate, grids, tilt, min(log_unplaced + lift, -10.0), log_unplaced, -log_delta - lift)

    def noise(self, grids: Grids) -> float:
        """The part of the delta in question that the FFT's rounding may amount to on these grids."""
        roundings = _FFT_NOISE * self.estimate.sketch.activity(grids.steps)
        return roundings * math.exp(min(self.log_magnified, 80.0))

    def compose(self, grids: Grids) -> TiltedLoss:
        """The whole composition on these grids."""
        parts = []
        for (pair, count), step in zip(self.estimate.pairs, grids.steps, strict=True):
            loss = discretise(pair, step, self.estimate.tail)
            loss = loss.reversed() if self.estimate.reverse else loss
            parts += self._copies(loss.tilted(self.tilt), count, round(grids.common / step))
        return convolve(parts)

    def compose_affordably(self, grids: Grids) -> tuple[TiltedLoss, Grids]:
        """The composition on `grids`, or on the least power-of-two multiple of them that is not too large."""
        while True:
            try:
                return self.compose(grids), grids
            except GridTooLarge:
                grids = grids.scaled(2)

    def _copies(self, loss: TiltedLoss, count: int, factor: int) -> list[TiltedLoss]:
        """`count` copies on the grid `factor` times as wide: at once if that is small enough, else by blocks.

        Blocks of about sqrt(count) copies are composed on the fine grid, and the blocks on the wide one.
        """
        alone = len(self.estimate.pairs) == 1
        try:
            return [self._repeated(loss, count, 1, _AT_ONCE).coarsened(1 if alone else factor)]
        except GridTooLarge:
            outer = math.isqrt(count)
        inner, rest = divmod(count, outer)
        block = self._repeated(loss, inner, outer + 1).coarsened(factor)
        parts = [self._repeated(block, outer, 2)]
        return [*parts, self._repeated(loss, rest, 2).coarsened(factor)] if rest else parts

    def _repeated(self, loss: TiltedLoss, count: int, shares: int, most: int = MAX_POINTS) -> TiltedLoss:
        share = math.log(2 * len(self.estimate.pairs) * shares)
        return loss.repeated(count, self.log_negligible - share, self.log_unplaced - share, most)
