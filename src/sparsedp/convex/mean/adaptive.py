"""A noisy sparse mean made better by what it shows itself: coordinates that stand out, and how many do not.

All of this is post-processing: it looks at the noisy vector and at public numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparsedp.convex.mean.projection import (
    Projected,
    ball_risk,
    project,
    pure_noise_error,
    risk_terms,
    shrink,
)
from sparsedp.convex.noise import Noise
from sparsedp.core.arrays import F64

_CANDIDATES = 33
_WORTH_IT = 1.15
"""Zero is the answer where even the longest mean would be no farther from it than this many projection errors."""
_CHANCE = 0.01
_LEAST_CHANCE = 0.001
"""How often noise alone may look like a significant coordinate: at most, and where strictness costs nothing."""
_FULL_STAKE = 3.5
"""At which stake the chance is the larger one; below it falls in proportion."""
_LARGE = 0.5
"""Coordinates of this share of the largest mean must be able to be significant; smaller ones need not."""
_LOOSE = 0.6
"""Bernstein's bound is loose: it is used at the chance to this power."""


@dataclass(frozen=True)
class Denoised:
    """An estimate of the mean, how it was made, and what is needed to bound its error.

    ``method`` is ``"zero"``, ``"projection"`` or ``"threshold"``; coordinates beyond ``level`` are significant.
    """

    point: F64
    method: str
    level: float


def denoise(noisy: F64, noise: Noise, *, l2_bound: float, radius: float) -> Denoised:
    """A mean of l2 norm ``l2_bound`` and l1 norm ``radius`` at most, estimated from itself with noise.

    Noise in the answer is an error, so the first question is what answering zero would cost:

    1. Where noise is so large that no mean could be told from zero at a gain, the answer is zero.
    2. Coordinates beyond ``level`` are significant: noise alone seldom gets there. They stay as they are.
    3. The others are soft-thresholded, if that improves the estimated error by more than chance would;
       the threshold is the one with the least estimated error, and the projection to the ball of all means
       (Algorithm 1) is one more candidate. Else they count as noise.

    The answer is brought back to the l1 and the l2 ball, which hold the mean. So it is never far from the
    better of zero and the projection, and mostly closer than either: ``benchmarks/mean.py --fresh``.
    """
    d = noisy.size
    level = outstanding(noise, d, l2_bound=l2_bound, radius=radius)
    if math.isinf(level):
        return Denoised(np.zeros(d), "zero", level)
    significant = np.flatnonzero(np.abs(noisy) > level)
    thresholds = np.linspace(0.0, level, _CANDIDATES)
    gains = _gains(noisy, noise, thresholds) - _gains(noisy[significant], noise, thresholds)
    # The more coordinates are significant, the less evidence is needed that others are not zero either.
    left = d - significant.size
    chance = (d * noise.beyond(level)) ** _LOOSE
    allowance = noise.risk_allowance(left, thresholds, chance) * left / d
    improves = bool(np.min((gains + allowance)[:-1]) < 0.0)
    if not improves and not significant.size:
        return Denoised(np.zeros(d), "zero", level)
    threshold = float(thresholds[np.argmin(gains)]) if improves else level
    if improves:
        widest = project(noisy, radius)
        retained = float(np.sum(2 * noise.variance - noisy[significant] ** 2)) + float(gains.min())
        if _ball_gain(noisy, noise, widest) < retained:
            return Denoised(_within(widest.point, l2_bound), "projection", level)
    point = shrink(noisy, threshold)
    point[significant] = noisy[significant]
    return Denoised(_within(project(point, radius).point, l2_bound), "threshold", level)


def outstanding(noise: Noise, d: int, *, l2_bound: float, radius: float) -> float:
    """The level beyond which a coordinate counts as more than noise; infinite where none should.

    Noise alone gets there with probability ``_CHANCE``, or less where less is at stake: by how much the longest
    mean is longer than what the projection keeps of pure noise. Down to ``_LEAST_CHANCE`` where half of the longest
    mean is still beyond the level.
    """
    stake = (l2_bound / pure_noise_error(noise, d, radius)) ** 2 - _WORTH_IT**2
    if stake <= 0.0:
        return math.inf
    chance = max(_LEAST_CHANCE, _CHANCE * min(1.0, stake / _FULL_STAKE))
    strictest = noise.largest(d, _LEAST_CHANCE)
    return min(max(_LARGE * l2_bound, noise.largest(d, chance)), strictest)


def denoised_error_bound(
    answer: Denoised, noise: Noise, d: int, *, l2_bound: float, radius: float, beta: float
) -> float:
    """What the error of ``denoise`` stays below, but for probability ``beta``.

    Proof: let u bound all noise. A coordinate z of the answer has the sign of the noisy one and is shorter by
    some t_j, so ``(z - mean)^2 <= (u - t_j) |z| + (u + t_j) |mean|``; where z = 0, ``mean^2 <= (u + t_j) |mean|``.
    t_j is at most the level, plus a constant which the projection to the ball adds on all coordinates, and which
    cancels there. Answer and mean lie in the ball: the sum is at most ``(2 u + level) radius``. Also, no
    coordinate is farther off than its noise and the level, and bringing it back to a ball moves it closer.
    """
    if answer.method == "zero":
        return min(l2_bound, math.sqrt((noise.largest(d, beta) + answer.level) * radius))
    level = 0.0 if answer.method == "projection" else answer.level
    by_ball = math.sqrt((2 * noise.largest(d, beta / 2) + level) * radius)
    return min(2 * l2_bound, by_ball, noise.norm(d, beta / 2) + level * math.sqrt(d))


def _gains(noisy: F64, noise: Noise, thresholds: F64) -> F64:
    """The estimated errors of soft thresholds, relative to that of the last one."""
    squares, passing = risk_terms(noisy, noise, thresholds)
    return np.asarray(squares - squares[-1] + 2 * noise.variance * (passing - passing[-1]))


def _ball_gain(noisy: F64, noise: Noise, ball: Projected) -> float:
    """The estimated error of a projection, relative to that of answering zero."""
    zero = float(noisy @ noisy) - noise.variance * noisy.size
    return ball_risk(noisy, noise, ball) - zero


def _within(point: F64, l2_bound: float) -> F64:
    norm = float(np.linalg.norm(point))
    return point if norm <= l2_bound else point * (l2_bound / norm)
