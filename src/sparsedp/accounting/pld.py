"""One privacy loss distribution over everything that happened: epsilon from delta, delta from epsilon.

The grid is refined until the answer settles; every grid gives an upper bound, so an unsettled answer is still safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sparsedp.accounting.analytic_gaussian import analytic_gaussian_delta, analytic_gaussian_epsilon
from sparsedp.accounting.dominating import NoPrivacy, Pairs, dominating_pairs, merged
from sparsedp.accounting.events import Events
from sparsedp.accounting.grid import TiltedLoss, compose_self, convolve, discretise
from sparsedp.accounting.pairs import Gaussian
from sparsedp.accounting.renyi import has_renyi, renyi_epsilon
from sparsedp.accounting.sketch import Sketch

_MAX_POINTS = 1 << 21
_FINEST, _COARSEST = -36, 10  # grids are powers of two between these
_UNPLACED = 1e-6  # the part of delta that may go to losses above the grid


def tolerance(epsilon: float) -> float:
    """How far a settled epsilon may be above the exact one: 1e-4 of it up to 1, then 1e-4, then 1e-5 of it."""
    return max(1e-4 * min(epsilon, 1.0), 1e-5 * epsilon, 1e-7)


@dataclass(frozen=True)
class Answer:
    """An upper bound, and whether refining the grid would still move it noticeably."""

    value: float
    settled: bool = True


@dataclass(frozen=True)
class _Direction:
    """The composition seen from one neighbour (P first, or Q first when `reverse`), tilted for the question asked."""

    pairs: Pairs
    reverse: bool
    tail: float
    sketch: Sketch
    tilt: float

    def steps(self, tolerance: float) -> list[float]:
        """For each part the widest grid that keeps the whole within `tolerance` by the sketch's estimate."""
        shares = 2 * len(self.pairs)
        widest = 2.0**_COARSEST
        while len(self.pairs) > 1 and (1 + self.tilt) * len(self.pairs) * widest**2 / 12 > tolerance / 2:
            widest /= 2
        return [self._step(i, tolerance / shares, widest) for i in range(len(self.pairs))]

    def _step(self, i: int, tolerance: float, widest: float) -> float:
        part = self.sketch.parts[i]
        alone = Sketch((part,))
        low, high = self.pairs[i][0].span(self.tail)
        window = 20 * math.sqrt(alone.moments(self.tilt)[1])
        narrowest = max(2.0**_FINEST, max(high - low, window) / _MAX_POINTS)
        step = widest
        while step / 2 > narrowest and alone.rounding(self.tilt, [step]) > tolerance:
            step /= 2
        return step

    def points(self, steps: list[float]) -> float:
        """About how many grid points the largest part needs."""
        spans = [pair.span(self.tail) for pair, _ in self.pairs]
        windows = [20 * math.sqrt(Sketch((part,)).moments(self.tilt)[1]) for part in self.sketch.parts]
        widths = [max(high - low, window) for (low, high), window in zip(spans, windows, strict=True)]
        return max(width / step for width, step in zip(widths, steps, strict=True))

    def compose(self, steps: list[float]) -> TiltedLoss:
        """The whole composition, part i discretised on steps[i] and all brought to the widest of them."""
        parts = []
        for (pair, count), step in zip(self.pairs, steps, strict=True):
            loss = discretise(pair, step, self.tail)
            loss = loss.reversed() if self.reverse else loss
            parts.append(compose_self(loss, count, self.tilt).coarsened(round(max(steps) / step)))
        return convolve(parts)


def epsilon_answer(events: Events, delta: float, relative: float = 1.0) -> Answer:
    """Epsilon at `delta`, settled to `relative` times `tolerance`."""
    try:
        pairs = dominating_pairs(events)
    except NoPrivacy:
        return Answer(math.inf)
    if not pairs:
        return Answer(0.0)
    if len(pairs) == 1 and isinstance(pairs[0][0], Gaussian):
        return Answer(analytic_gaussian_epsilon(delta, pairs[0][0].mu))
    tail = max(_UNPLACED * delta / sum(count for _, count in pairs), 1e-290)
    best = Answer(0.0)
    for reverse in (False, True) if not all(pair.symmetric for pair, _ in pairs) else (False,):
        sketch = Sketch.of(pairs, tail, reverse=reverse)
        tilt, estimate = sketch.tilt_for_delta(delta)
        direction = _Direction(pairs, reverse, tail, sketch, tilt)
        answer = _settle(direction, lambda loss: loss.epsilon_at(delta), relative * tolerance(estimate), best.value)
        best = max(best, answer, key=lambda answer: answer.value)
    if best.settled or not all(has_renyi(event) for event, _ in events):
        return best
    return Answer(min(best.value, renyi_epsilon(merged(events), delta)), settled=False)


def delta_answer(events: Events, epsilon: float) -> Answer:
    """Delta at `epsilon`, where the grid is fine enough to settle epsilon."""
    try:
        pairs = dominating_pairs(events)
    except NoPrivacy:
        return Answer(1.0)
    if not pairs:
        return Answer(0.0)
    if len(pairs) == 1 and isinstance(pairs[0][0], Gaussian):
        return Answer(analytic_gaussian_delta(epsilon, pairs[0][0].mu))
    best = Answer(0.0)
    for reverse in (False, True) if not all(pair.symmetric for pair, _ in pairs) else (False,):
        tail = 1e-40
        tilt, log_delta = Sketch.of(pairs, tail, reverse=reverse).tilt_for_epsilon(epsilon)
        total = sum(count for _, count in pairs)
        tail = max(_UNPLACED * math.exp(max(log_delta - 5, -600)) / total, 1e-290)
        direction = _Direction(pairs, reverse, tail, Sketch.of(pairs, tail, reverse=reverse), tilt)
        loss = direction.compose(direction.steps(tolerance(epsilon)))
        best = max(best, Answer(loss.delta_at(epsilon)), key=lambda answer: answer.value)
    return best


def _settle(
    direction: _Direction, read: Callable[[TiltedLoss], float], tolerance: float, enough: float
) -> Answer:
    """Halve the grid until the answer moves by no more than the rounding the tolerance allows, or is below `enough`."""
    steps = direction.steps(tolerance)
    before = read(direction.compose([2 * step for step in steps]))
    for _ in range(12):
        if before <= enough:
            return Answer(before)
        value = min(before, read(direction.compose(steps)))
        # Halving the grid takes away three quarters of the rounding: what remains is a third of the change.
        if before - value <= 4 * tolerance:
            return Answer(value)
        finer = [max(step / 2, 2.0**_FINEST) for step in steps]
        if direction.points(finer) > 2 * _MAX_POINTS or finer == steps:
            return Answer(value, settled=False)
        before, steps = value, finer
    return Answer(value, settled=False)
