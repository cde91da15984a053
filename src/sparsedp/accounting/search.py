"""Roots of monotone functions that are expensive to evaluate and close to power laws."""

from __future__ import annotations

import math
from collections.abc import Callable

_MOST_EVALUATIONS = 30
_NARROW = 1e-5


def solve_falling(
    function: Callable[[float], float],
    *,
    aim: float,
    slack: float,
    guess: float,
    limits: tuple[float, float],
    exponent: float = -1.0,
    narrow: float = _NARROW,
) -> tuple[float, float]:
    """(x, exponent) with aim - slack <= function(x) <= aim, for a function that falls with x.

    Steps follow the power law x^exponent through the last two points, within the current bracket of the root.
    Where the function jumps over the interval, x is next to the jump on its lower side, within a share `narrow`
    of it; where it stays on one side of it up to a limit, x is that limit.
    """
    low, high = limits
    x, last = guess, (math.nan, math.nan)
    for evaluation in range(_MOST_EVALUATIONS):
        y = function(x)
        if aim - slack <= y <= aim:
            break
        if y > aim:
            low = x
        else:
            high = x
        if high <= low * (1 + narrow):
            return high, exponent
        exponent = _exponent(last, (x, y), exponent)
        last = (x, y)
        x = _next(x, y, max(aim - slack / 2, aim / 2), exponent, 2.0 ** (evaluation + 1), (low, high))
    else:
        return high, exponent
    return x, exponent


def _exponent(one: tuple[float, float], two: tuple[float, float], otherwise: float) -> float:
    """The exponent of the power law through two points, if it is one that falls."""
    if not (one[1] > 0 and two[1] > 0 and math.isfinite(one[1] + two[1])) or one[0] == two[0]:
        return otherwise
    exponent = math.log(one[1] / two[1]) / math.log(one[0] / two[0])
    return exponent if exponent < -1e-3 else otherwise


def _next(
    x: float, y: float, requested: float, exponent: float, reach: float, between: tuple[float, float]
) -> float:
    """The next x along the power law, by at most a factor `reach` and strictly inside the bracket `between`."""
    if y > 0 and requested > 0 and math.isfinite(y):
        furthest = math.log(reach)
        log_move = (math.log(requested) - math.log(y)) / exponent
        move = math.exp(min(max(log_move, -furthest), furthest))
    else:
        move = reach if y > requested else 1 / reach
    low, high = between
    return x * move if low < x * move < high else math.sqrt(low * high)


def last_fitting(cost: Callable[[int], float], limit: float, *, guess: int, most: int) -> int:
    """The n with cost(n) <= limit < cost(n + 1), for a cost that rises with n and is within the limit at 0.

    Secant steps, each followed by an evaluation at the neighbour that would end the search; bisection if they
    take too long.
    """
    low, high = 0, most
    last: tuple[int, float] | None = None
    n, confirm = min(max(guess, 1), most - 1), False
    for evaluation in range(200):
        y = cost(n)
        low, high = (n, high) if y <= limit else (low, n)
        if high - low <= 1:
            break
        if evaluation > 16:
            proposal = (low + high) // 2
        elif confirm:
            proposal = low + 1 if n == low else high - 1
        else:
            proposal = _secant(last, (n, y), limit)
        last, confirm = (n, y), evaluation > 0 and not confirm
        n = min(max(proposal, low + 1), high - 1)
    return low


def _secant(one: tuple[int, float] | None, two: tuple[int, float], limit: float) -> int:
    n, y = two
    if one is None or one[1] == y:  # about as the square root of n
        return math.floor(n * min(limit / y, 2.0) ** 2) if y > 0 else 4 * n
    step = (limit - y) * (n - one[0]) / (y - one[1])
    return math.floor(n + min(max(step, -n), 8 * n)) if math.isfinite(step) else n // 2
