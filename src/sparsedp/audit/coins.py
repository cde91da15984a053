"""One-run auditing: many canaries, each in the data by a coin flip, one training, one guess per canary.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (2023). Whoever sees what a training
released scores each canary, guesses "in" for the highest scores and "out" for the lowest, and abstains between. A
mechanism of small epsilon allows few correct guesses; so many correct ones bound epsilon from below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.core.arrays import Bools
from sparsedp.core.validation import check_count, check_non_negative, check_probability
from sparsedp.randomness import Stream

LARGEST_EPSILON = 50.0
LARGEST_MU = 10.0
_SHARES = (1.0, 0.5, 0.2, 0.1, 0.05)
"""The parts of the canaries that are guessed, each by itself, before the results are seen."""


@dataclass(frozen=True)
class OneRunResult:
    """What one training with canaries shows.

    ``lower_bound`` holds for any mechanism: its epsilon at ``delta`` is at least that, except with probability
    ``1 - confidence``. ``gaussian_lower_bound`` is often higher, and holds if the whole training is mu-Gaussian DP
    for some mu, as compositions of many Gaussian steps nearly are. Adjacency: add or remove one canary.
    """

    lower_bound: float
    gaussian_lower_bound: float
    claimed: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int

    @property
    def refuted(self) -> bool:
        """Whether the claim is wrong (but for ``1 - confidence``)."""
        return self.lower_bound > self.claimed

    def __str__(self) -> str:
        verdict = "REFUTED" if self.refuted else "not refuted"
        return (
            f"epsilon >= {self.lower_bound:.3g} at delta = {self.delta:g} (>= {self.gaussian_lower_bound:.3g} if the "
            f"training is Gaussian DP), add or remove one canary, confidence {self.confidence:g}: {self.correct} of "
            f"{self.guesses} guesses right, {self.canaries} canaries in one run; claimed {self.claimed:.3g}: {verdict}"
        )


def flip_coins(canaries: int, stream: Stream) -> Bools:
    """Which canaries are in the data: each with probability one half, independently."""
    return stream.integers(2, check_count("canaries", canaries)).astype(np.bool_)


def one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    claimed: float,
    confidence: float = 0.95,
    guesses: Sequence[int] | None = None,
) -> OneRunResult:
    """Bound epsilon from below by guessing, from its score, whether each canary was in the data.

    ``scores``: one number per canary, computed from what was released and the canary alone, higher where it seems to have
    been in; ``included``: the coins (``flip_coins``), which the scores must not have used. ``guesses``: the
    numbers of canaries to guess, fixed in advance; the best result is taken and the confidence is divided among them.
    """
    points, coins = _checked(scores, included)
    delta, claimed = check_probability("delta", delta), check_non_negative("claimed", claimed)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    sizes = guess_counts(points.size) if guesses is None else sorted(set(guesses))
    if not sizes or not 1 <= sizes[0] <= sizes[-1] <= points.size:
        raise ValueError(f"guesses must be between 1 and the number of canaries, {points.size}, got {sizes}")
    error = (1.0 - confidence) / len(sizes)
    found = []
    for size in sizes:
        correct = correct_guesses(points, coins, size)
        bound = one_run_epsilon(size, correct, canaries=points.size, delta=delta, confidence=1.0 - error)
        gaussian = one_run_gaussian_epsilon(
            size, correct, canaries=points.size, delta=delta, confidence=1.0 - error
        )
        found.append((bound, gaussian, size, correct))
    bound, _, size, correct = max(found)
    gaussian = max(each[1] for each in found)
    return OneRunResult(bound, gaussian, claimed, delta, confidence, points.size, size, correct)


def one_run_epsilon(guesses: int, correct: int, *, canaries: int, delta: float, confidence: float) -> float:
    """The largest epsilon that so many correct guesses refute, at most ``LARGEST_EPSILON``.

    Theorem 5.2 of the paper: for an (epsilon, delta)-DP mechanism on m canaries, r of which are guessed, the number
    of correct guesses is at least v with probability at most ``P(B >= v) + 2 m delta max_i P(v > B >= v - i) / i``, where
    B is binomial of r trials with probability ``e^epsilon / (1 + e^epsilon)``.
    """

    def surplus(epsilon: float) -> float:
        return _probability(guesses, correct, canaries, epsilon, delta) - (1.0 - confidence)

    return _largest(surplus)


def one_run_gaussian_epsilon(
    guesses: int, correct: int, *, canaries: int, delta: float, confidence: float
) -> float:
    """The same for mu-Gaussian DP: epsilon at ``delta`` of the largest mu that is refuted (at most ``LARGEST_MU``).

    Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run" (2024), Theorem 9 and Algorithm 3: if
    the mechanism is f-DP, the probability of i correct guesses and those of more are tied together by f, step by step
    from ``correct`` downwards; where they add up to more than one, f is refuted.
    """

    def is_refuted(mu: float) -> bool:
        return not _is_possible(guesses, correct, canaries, mu, 1.0 - confidence)

    if delta == 0.0 or correct == 0 or not is_refuted(0.0):
        return 0.0
    mu = _bisected(is_refuted, LARGEST_MU)
    return analytic_gaussian_epsilon(delta, mu) if mu > 0 else 0.0


def _checked(scores: ArrayLike, included: ArrayLike) -> tuple[NDArray[np.float64], Bools]:
    points, coins = np.asarray(scores, dtype=np.float64), np.asarray(included)
    if points.ndim != 1 or not points.size or np.isnan(points).any():
        raise ValueError("scores must be one number for each canary, and not NaN")
    if coins.shape != points.shape or coins.dtype != np.bool_:
        raise ValueError(f"included must be one bool for each of the {points.size} canaries")
    return points, coins


def guess_counts(canaries: int) -> list[int]:
    """The numbers of canaries that are guessed where none are given."""
    return sorted({max(1, round(share * canaries)) for share in _SHARES})


def correct_guesses(scores: NDArray[np.float64], included: Bools, guesses: int) -> int:
    """Guess "in" for the higher half of the guessed canaries and "out" for the lower."""
    order = np.argsort(scores, kind="stable")
    low, high = order[: guesses // 2], order[scores.size - (guesses - guesses // 2) :]
    return int((~included[low]).sum() + included[high].sum())


def _probability(guesses: int, correct: int, canaries: int, epsilon: float, delta: float) -> float:
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0.0 or correct == 0:
        return tail
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance))
    steepest = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, tail + 2.0 * canaries * delta * steepest)


def _is_possible(guesses: int, correct: int, canaries: int, mu: float, error: float) -> bool:
    """Whether a mu-Gaussian-DP mechanism allows so many correct guesses with more than this probability."""
    right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        fewer = max(wrong, float(ndtr(ndtri(right) - mu)))
        right += i / (guesses - i) * (fewer - wrong)
        wrong = fewer
    return right + wrong <= guesses / canaries


def _largest(surplus: Callable[[float], float]) -> float:
    """Where an increasing function passes zero; 0 if it is positive from the start."""
    if surplus(0.0) >= 0.0:
        return 0.0
    if surplus(LARGEST_EPSILON) < 0.0:
        return LARGEST_EPSILON
    return float(brentq(surplus, 0.0, LARGEST_EPSILON, xtol=1e-6))


def _bisected(is_refuted: Callable[[float], bool], high: float) -> float:
    """The largest refuted value, to 1e-4."""
    low = 0.0
    if is_refuted(high):
        return high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
