"""lambda from the theorems of SGO section 5, where bias and noise balance."""

from __future__ import annotations

import math
from typing import Literal

from sparsedp.convex.erm.risk import Regularity
from sparsedp.convex.noise import DEFAULT_BETA
from sparsedp.core.validation import check_positive

Goal = Literal["empirical", "population"]

FREE_MARGIN = 0.4
"""How far noise alone may scatter the margin of a longest row, where that decides how much is regularised.

A direction that the data say nothing of is moved by noise only. Less regularisation lets noise decide about
rows, more keeps the data from doing so; between a fifth and a half, real text and census data hardly mind.
"""


def check_lambda(lam: float) -> float:
    """A regularisation that makes the minimiser stable: positive."""
    if lam == 0:
        raise ValueError("lam must be positive, got 0: without it one example moves the minimiser freely")
    return check_positive("lam", lam)


def theorem_lambda(
    regularity: Regularity,
    *,
    n: int,
    dimension: int,
    epsilon: float,
    delta: float,
    diameter: float,
    goal: Goal = "empirical",
    beta: float = DEFAULT_BETA,
) -> float:
    """The regularisation of Theorems 5.1 (empirical risk) and 5.6 (population risk).

    The sparsity enters as s = (l1 bound / l2 bound)^2 of a gradient. ``diameter`` is D: a bound on the norm
    of a good solution. The theorems leave constants open; they are taken as 1.
    """
    if goal not in ("empirical", "population"):
        raise ValueError(f"goal must be 'empirical' or 'population', got {goal!r}")
    if not math.isfinite(diameter):
        raise ValueError("diameter must be given to choose lam from the theorem: the domain is unbounded")
    d = check_positive("diameter", diameter)
    lipschitz = regularity.lipschitz
    s = (regularity.lipschitz_l1 / lipschitz) ** 2
    log_d = math.log(dimension / beta)
    if delta == 0.0:
        if regularity.smoothness is None:
            raise ValueError("lam must be given for pure DP: the theorem's choice needs a smooth loss")
        return float((lipschitz**2 * regularity.smoothness * s * log_d / (d**2 * epsilon * n)) ** (1 / 3))
    noise = math.sqrt(s * math.log(1 / delta) * log_d) / (epsilon * n)
    statistical = math.log(n) * math.log(1 / beta) / n if goal == "population" else 0.0
    return lipschitz / d * math.sqrt(noise + statistical)
