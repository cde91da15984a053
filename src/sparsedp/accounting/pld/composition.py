"""One privacy loss distribution over everything that happened: epsilon from delta, delta from epsilon.

Grids are refined until the answer converges. Every grid gives an upper bound, so an answer that has not converged
is still safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsedp.accounting.analytic_gaussian import analytic_gaussian_delta, analytic_gaussian_epsilon
from sparsedp.accounting.events import Events
from sparsedp.accounting.pld.chernoff import chernoff_delta, chernoff_epsilon
from sparsedp.accounting.pld.dominating import dominating_pairs, largest_loss, merged
from sparsedp.accounting.pld.one_sided import ROUNDING, OneSidedPld, Pairs, PldEstimate
from sparsedp.accounting.pld.pairs import LARGEST_LOSS, Gaussian, NoPrivacy, Pair, Unresolved, Weighted
from sparsedp.accounting.pld.sampling import PoissonSampled
from sparsedp.accounting.pld.tilted import GridTooLarge, TiltedLoss
from sparsedp.accounting.renyi import has_renyi, renyi_epsilon


def tolerance(epsilon: float) -> float:
    """How far above the exact epsilon a converged one may be: 2e-4 of it up to 1, 2e-4 up to 10, then 2e-5 of it."""
    return max(2e-4 * min(epsilon, 1.0), 2e-5 * epsilon, 1e-7)


_RELATIVE = 1e-3  # how far above the exact delta a bound may lie
_STEEP = 1e6
_DROWNED = 0.5  # with more noise than this part of delta, a grid tells nothing
_NOT_WORTH_A_GRID = 1e5  # whether such an epsilon is off by a part in a hundred is of no interest
_ULPS = 1e-14  # what adding up floats may lose
_LAST_DIGITS = 2.0**-51  # of a ratio of two masses
_LEAST = -690.0  # ln of about the smallest delta that is told from zero


@dataclass(frozen=True)
class Answer:
    """An upper bound on an epsilon, and whether a finer grid would move it by no more than the tolerance."""

    epsilon: float
    converged: bool = True


def epsilon_answer(events: Events, delta: float, slack: float = 1.0) -> Answer:
    """Epsilon at `delta`, add-or-remove-one, converged to `slack` times `tolerance`; infinite above `LARGEST_LOSS`."""
    try:
        pairs = dominating_pairs(events)
    except NoPrivacy:
        return Answer(math.inf)
    if not pairs:
        return Answer(0.0)
    (first, count), *others = pairs
    if isinstance(first, Gaussian) and not others:
        return _checked(Answer(analytic_gaussian_epsilon(delta, first.mu * math.sqrt(count))))
    if total_variation(pairs) <= delta:
        return Answer(0.0)
    worst, largest = Answer(0.0), _pure_epsilon(pairs)
    for reverse in directions(pairs):
        try:
            answer = _epsilon_one_way(pairs, reverse, delta, slack, worst.epsilon)
        except Unresolved:
            answer = Answer(math.inf, converged=False)
        if not answer.converged:
            answer = Answer(min(answer.epsilon, chernoff_epsilon(pairs, reverse, delta)), converged=False)
        worst = max(worst, answer, key=lambda answer: answer.epsilon)
    if largest < math.inf and worst.epsilon >= largest:
        return _checked(Answer(largest, worst.converged))
    if worst.converged or not all(has_renyi(event) for event, _ in merged(events)):
        return _checked(worst)
    return _checked(Answer(min(worst.epsilon, renyi_epsilon(merged(events), delta)), converged=False))


def _checked(answer: Answer) -> Answer:
    return answer if answer.epsilon <= LARGEST_LOSS else Answer(math.inf)


def delta_bound(events: Events, epsilon: float) -> float:
    """An upper bound on delta at `epsilon`, above it by about one part in a thousand."""
    try:
        pairs = dominating_pairs(events)
    except NoPrivacy:
        return 1.0
    if not pairs:
        return 0.0
    (first, count), *others = pairs
    if isinstance(first, Gaussian) and not others:
        return analytic_gaussian_delta(epsilon, first.mu * math.sqrt(count))
    worst, unsure = 0.0, loss_rounding(pairs)
    known = max(epsilon - unsure, 0.0)
    for reverse in directions(pairs):
        try:
            bound = _delta_one_way(pairs, reverse, known)
        except Unresolved:
            bound = chernoff_delta(pairs, reverse, known)
        worst = max(worst, bound)
    return min(worst + max(unsure - epsilon, 0.0), total_variation(pairs))


def loss_rounding(pairs: Pairs) -> float:
    """How far the sum of losses may be off since the masses of P and Q are floats: their last digits, once a copy.

    delta at epsilon is at most the computed one at epsilon less this; and, below 0, at most that at 0 plus the rest, as
    delta falls by less than epsilon rises. It is felt where losses are as small, at sampling rates of 1e-13 and below.
    """
    return _LAST_DIGITS * sum(count for _, count in pairs)


def _delta_one_way(pairs: Pairs, reverse: bool, epsilon: float) -> float:
    """Delta in one direction: each result tunes the grid of the next, until both agree."""
    estimate = PldEstimate.of(pairs, reverse=reverse, log_delta=-90.0)
    if max(max(map(abs, pair.span(estimate.tail))) for pair, _ in pairs) > _NOT_WORTH_A_GRID:
        raise Unresolved
    saddle, log_delta = estimate.sketch.tilt_for_epsilon(epsilon)
    best, precision, decay = 0.0, 0.1, max(saddle, 1e-9)
    for _ in range(8):
        # An epsilon off by x makes a delta wrong by a factor of e^(decay x).
        allowed = max(precision / decay, 1e-9)
        grids = estimate.grids(epsilon=epsilon, saddle=saddle, decay=decay, tolerance=allowed)
        one_sided = OneSidedPld.towards(estimate, grids, epsilon=epsilon, log_delta=log_delta, saddle=saddle)
        bound, loss, _ = _refine(one_sided, _log_delta_at(epsilon, log_delta), precision, _LEAST)
        best = min(best, bound)
        prepared = abs(bound - log_delta) < 1
        if best <= _LEAST or (prepared and precision == _RELATIVE):
            break
        precision = _RELATIVE if prepared else 0.1
        log_delta, decay = max(best, -640.0), max(_decay(loss, epsilon), 1e-9)
        estimate = PldEstimate.of(pairs, reverse=reverse, log_delta=log_delta)
        saddle, _ = estimate.sketch.tilt_for_epsilon(epsilon)
    return min(math.exp(best) * (1 + ROUNDING), 1.0) if best > _LEAST else 0.0


def _pure_epsilon(pairs: Pairs) -> float:
    """The sum of the largest losses, infinite where one has no limit: there delta is 0, whatever rounded losses say."""
    losses = [(largest_loss(pair), count) for pair, count in pairs]
    return sum(math.inf if loss is None else count * loss for loss, count in losses) * (1 + _ULPS)


def total_variation(pairs: Pairs) -> float:
    """A bound on the delta at epsilon 0, which is the total variation: 1 - product of (1 - that of each factor)."""
    log_agreement = 0.0
    for pair, count in pairs:
        log_agreement += count * math.log1p(-min(_distance(pair), 1 - 1e-16))
    return min(-math.expm1(log_agreement) * (1 + _ULPS), 1.0)


def _distance(pair: Pair) -> float:
    """A bound on the total variation of P and Q: what P has more on the losses above 0.

    Sampling makes it smaller in proportion. The difference of the two masses is wrong by their last digits, which count
    on the safe side; sampled masses are no longer subtracted, as all digits of a small difference would be lost.
    """
    if isinstance(pair, PoissonSampled):
        return pair.rate * _distance(pair.pair)
    if isinstance(pair, Weighted):
        return pair.weight * _distance(pair.first) + (1 - pair.weight) * _distance(pair.second)
    p, q = pair.cells(np.zeros(1))
    return max(float(p[1] - q[1]), 0.0) + _ULPS * float(p[1] + q[1])


def directions(pairs: Pairs) -> tuple[bool, ...]:
    """The directions that differ, as values of `reverse`."""
    return (False,) if all(pair.symmetric for pair, _ in pairs) else (False, True)


def _epsilon_one_way(pairs: Pairs, reverse: bool, delta: float, slack: float, enough: float) -> Answer:
    """Epsilon in one direction, first roughly, then converged; below `enough` (the other's) a rough value suffices."""
    estimate = PldEstimate.of(pairs, reverse=reverse, log_delta=math.log(delta))
    saddle, near = estimate.sketch.tilt_for_delta(delta)
    if not near <= _NOT_WORTH_A_GRID:
        raise Unresolved
    answer, decay = Answer(math.inf), saddle
    for precision in (0.1, 0.01, 0.0):
        required = max(slack * tolerance(near), precision * near)
        grids = estimate.grids(epsilon=near, saddle=saddle, decay=decay, tolerance=required)
        one_sided = OneSidedPld.towards(
            estimate, grids, epsilon=near, log_delta=math.log(delta), saddle=saddle
        )
        bound, loss, converged = _refine(
            one_sided, lambda loss, noise: loss.epsilon_at(delta * (1 - ROUNDING - noise)), required, enough
        )
        if bound > answer.epsilon + required:  # the coarser bound is better: the finer is lost in rounding
            return Answer(answer.epsilon, converged=False)
        near = min(bound, answer.epsilon)
        answer = Answer(near, converged and one_sided.noise(grids) <= required * decay + ROUNDING)
        if near <= enough or not math.isfinite(near) or required <= slack * tolerance(near):
            break
        decay, saddle = _decay(loss, near), estimate.sketch.tilt_for_epsilon(near)[0]
    return answer


def _refine(
    one_sided: OneSidedPld, read: Callable[[TiltedLoss, float], float], tolerance: float, enough: float
) -> tuple[float, TiltedLoss, bool]:
    """Halve the grids until the value of `read` changes by at most what the tolerance allows, or is `enough`.

    Halving a grid removes three quarters of its rounding, so a third of the last change remains. `read` gets the
    part of delta that the FFT's rounding may hide, and allows for it.
    """
    coarse, grids = one_sided.compose_affordably(one_sided.grids.scaled(2))
    noise = one_sided.noise(grids)
    if noise > _DROWNED:
        raise Unresolved
    before = read(coarse, noise)
    while before > enough:
        if math.isinf(before):  # more mass off the grid than delta allows, which no finer grid helps
            return before, coarse, False
        finer = grids.scaled(0.5)
        noise = one_sided.noise(finer)
        if finer == grids or noise > _DROWNED:
            return before, coarse, False
        grids = finer
        try:
            loss = one_sided.compose(grids)
        except GridTooLarge:
            # The finest possible grid: the next coarser one tells how far it is from converged.
            change = read(one_sided.compose(grids.scaled(4)), noise) - before
            return before, coarse, change <= 4 * tolerance
        value = min(before, read(loss, noise))
        if before - value <= 4 * tolerance:
            return value, loss, True
        before, coarse = value, loss
    return before, coarse, True


def _decay(loss: TiltedLoss, epsilon: float) -> float:
    """-d ln delta / d epsilon just above `epsilon`."""
    here, gap = loss.delta_at(epsilon), 0.03 * epsilon or loss.step
    for _ in range(8):
        there = loss.delta_at(epsilon + gap)
        if there > here / _STEEP:
            break
        gap /= 2  # close to the largest loss, beyond which there is nothing
    return math.log(here / max(there, here / _STEEP)) / gap if here > 0 else loss.tilt


def _log_delta_at(epsilon: float, log_delta: float) -> Callable[[TiltedLoss, float], float]:
    """Reads off ln delta at `epsilon`, plus the noise, which is a part of e^log_delta."""

    def read(loss: TiltedLoss, noise: float) -> float:
        delta = loss.delta_at(epsilon) + noise * math.exp(log_delta)
        return math.log(delta) if delta > 0 else _LEAST

    return read
