"""Random repetition: run a private mechanism a random number of times, release the best run, pay little more.

Choosing the best of several runs by a score leaks more than a run does. With a number of runs that is drawn from
one of these laws, and that nobody sees, the price hardly grows with the number (Papernot and Steinke 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeVar, get_args

from scipy import optimize

from sparsedp.accounting.events import DpEvent, RepeatAndSelectDpEvent
from sparsedp.core.validation import check_finite
from sparsedp.randomness import Stream

Law = Literal["geometric", "logarithmic"]
"""How the number of runs is distributed: both give at least one run."""
Output = TypeVar("Output")

_SHAPES = {"geometric": 1.0, "logarithmic": 0.0}
_MOST_RUNS = 1e6


def repetition_event(event: DpEvent, *, mean: float, law: Law = "geometric") -> DpEvent:
    """What the best of a random number of runs costs, if each run, with its score, costs ``event``.

    Guarantee: the adjacency of ``event``. Released: the output and the score of the best run; not the number of
    runs, nor anything of the others. Proof: Papernot and Steinke 2022, theorem 2, on Renyi divergences: of order a,
    those of a run plus ``log(mean) / (a - 1)`` and a constant of ``1 + shape`` times a run's, where the shape is
    1 for the geometric law and 0 for the logarithmic one.
    """
    return RepeatAndSelectDpEvent(event, _checked_mean(mean), _SHAPES[_checked_law(law)])


def draw_repetitions(*, mean: float, law: Law = "geometric", stream: Stream) -> int:
    """A number of runs, 1 or more: secret, because the price counts on it.

    Geometric: P(k) = g (1 - g)^(k - 1) with mean 1 / g. Logarithmic: P(k) = (1 - g)^k / (k ln(1/g)) with mean
    (1/g - 1) / ln(1/g), by inversion given a uniform (Kemp 1981).
    """
    mean, law = _checked_mean(mean), _checked_law(law)
    if mean == 1.0:
        return 1
    waiting = float(stream.exponential(1)[0])
    if law == "geometric":
        return 1 + math.floor(waiting / -math.log1p(-1.0 / mean))
    log_g = -_log_inverse(mean)
    rate = -math.log1p(-math.exp(log_g * float(stream.uniform(1)[0])))
    return 1 + math.floor(waiting / rate)


def best_of_repetitions(
    run: Callable[[], tuple[Output, float]], *, mean: float, law: Law = "geometric", stream: Stream
) -> Output:
    """Call ``run``, which returns an output and its score, a random number of times; return the best output.

    Guarantee: ``repetition_event`` of what one call costs, its score included. A score that is not a number counts
    as the lowest; of equal scores the first wins, which is post-processing of the runs' order.
    """
    repetitions = draw_repetitions(mean=mean, law=law, stream=stream)
    best, best_score = run()
    for _ in range(repetitions - 1):
        output, score = run()
        if score > best_score or math.isnan(best_score):
            best, best_score = output, score
    return best


def _checked_mean(mean: float) -> float:
    mean = check_finite("mean", mean)
    if not 1.0 <= mean <= _MOST_RUNS:
        raise ValueError(f"mean must lie between 1 and {_MOST_RUNS:g} runs, got {mean:g}")
    return mean


def _checked_law(law: Law) -> Law:
    if law not in _SHAPES:
        raise ValueError(f"law must be one of {', '.join(get_args(Law))}, got {law!r}")
    return law


def _log_inverse(mean: float) -> float:
    """ln(1/g) of the logarithmic law with this mean."""

    def excess(log_inverse: float) -> float:
        return math.expm1(log_inverse) / log_inverse - mean

    return float(optimize.brentq(excess, 1e-12, 40.0, xtol=1e-13))
