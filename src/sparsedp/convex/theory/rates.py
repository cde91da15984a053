"""The rates of Tables 1 and 2 of SGO: what sparsity buys, as formulas without their constants.

Every function takes one problem size (n examples, d coordinates, s-sparse, L-Lipschitz or of norm L) and
one privacy level, and returns a `Rate`: the minimum of its terms and the term that attains it, the regime.
The constants that the theorems hide are left at 1: a rate says how an error grows, not how large it is.
Logarithms are at least 1, since the terms meet there (for instance ln(d/(eps n)) at eps n = d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.core.validation import check_count, check_epsilon, check_finite, check_positive

CONSTANT = "constant"
HIGH_DIMENSIONAL = "high-dimensional"
LOW_DIMENSIONAL = "low-dimensional"


@dataclass(frozen=True)
class Rate:
    """A rate: the smallest of `terms`, each the error that one algorithm (or proof) gives.

    `statistical` is the part that privacy does not touch (1/sqrt(n) in stochastic optimisation), added to it.
    """

    terms: dict[str, float]
    statistical: float = 0.0

    @property
    def regime(self) -> str:
        """Which term is the smallest."""
        return min(self.terms, key=self.terms.__getitem__)

    @property
    def value(self) -> float:
        """The rate itself."""
        return self.terms[self.regime] + self.statistical


@dataclass(frozen=True)
class _Size:
    n: int
    d: int
    s: int
    epsilon: float
    delta: float
    scale: float


def mean_upper(n: int, d: int, s: int, epsilon: float, delta: float = 0.0, *, l2_bound: float = 1.0) -> Rate:
    """Table 1, upper bound: mean estimation (Theorems 3.2 and 3.4)."""
    p = _checked(n, d, s, epsilon, delta, l2_bound=l2_bound)
    if p.delta == 0.0:
        high = math.sqrt(p.s * _log(p.d) / (p.epsilon * p.n))
        low = math.sqrt(p.s * p.d) / (p.epsilon * p.n)
    else:
        high = (p.s * _log(p.d / p.s) * _log(1 / p.delta)) ** 0.25 / math.sqrt(p.epsilon * p.n)
        low = math.sqrt(p.d * _log(1 / p.delta)) / (p.epsilon * p.n)
    return _three_regimes(p.scale, high, low)


def mean_lower(n: int, d: int, s: int, epsilon: float, delta: float = 0.0, *, l2_bound: float = 1.0) -> Rate:
    """Table 1, lower bound: no private mean estimator does better (Theorems 4.1 and 4.5)."""
    p = _checked(n, d, s, epsilon, delta, l2_bound=l2_bound)
    if p.delta == 0.0:
        high = math.sqrt(p.s * _log(p.d / (p.epsilon * p.n)) / (p.epsilon * p.n))
        low = math.sqrt(p.s * p.d) / (p.epsilon * p.n)
    else:
        high = (p.s * _log(1 / p.delta)) ** 0.25 / math.sqrt(p.epsilon * p.n)
        low = math.sqrt(p.d * _log(1 / p.delta)) / (p.epsilon * p.n)
    return _three_regimes(p.scale, high, low)


def erm_upper(
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float = 0.0,
    *,
    lipschitz: float = 1.0,
    diameter: float = 1.0,
    smoothness: float | None = None,
) -> Rate:
    """Table 2, convex empirical risk (Theorems 5.1, 5.5), beside the dense rate and the trivial `L D`.

    Pure DP: `L^{2/3} H^{1/3} D^{4/3} (s ln d / (eps n))^{1/3}` with smoothness H (default L / D).
    """
    p = _checked(n, d, s, epsilon, delta, lipschitz=lipschitz)
    reach = p.scale * check_positive("diameter", diameter)
    return _three_regimes(reach, _convex_high(p, diameter, smoothness) / reach, _dense(p))


def sco_upper(
    n: int,
    d: int,
    s: int,
    epsilon: float,
    delta: float = 0.0,
    *,
    lipschitz: float = 1.0,
    diameter: float = 1.0,
    smoothness: float | None = None,
) -> Rate:
    """Table 2, convex population risk (Theorem 5.6): the empirical rate and `L D / sqrt(n)`."""
    empirical = erm_upper(
        n, d, s, epsilon, delta, lipschitz=lipschitz, diameter=diameter, smoothness=smoothness
    )
    return Rate(empirical.terms, statistical=lipschitz * diameter / math.sqrt(n))


def stationarity_upper(
    n: int, d: int, s: int, epsilon: float, delta: float, *, lipschitz: float = 1.0
) -> Rate:
    """Table 2, nonconvex: the norm of the empirical gradient that bias-reduced SGD reaches (Theorem 6.8)."""
    p = _checked(n, d, s, epsilon, delta, lipschitz=lipschitz)
    if p.delta == 0.0:
        raise ValueError("delta must be positive: the stationarity rate is known for approximate DP only")
    log_delta = _log(1 / p.delta)
    high = (p.s * _log(p.d / p.s) * log_delta**3) ** 0.125 / (p.epsilon * p.n) ** 0.25
    low = (math.sqrt(p.d * log_delta) / (p.epsilon * p.n)) ** (2 / 3)
    return _three_regimes(p.scale, high, low)


def log_log_slope(x: ArrayLike, y: ArrayLike) -> float:
    """The exponent b of the least-squares fit `y = a x^b` on logarithmic axes."""
    logs = []
    for name, values in (("x", x), ("y", y)):
        array = np.asarray(values, dtype=np.float64)
        if array.ndim != 1 or array.size < 2:
            raise ValueError(f"{name} must hold at least two numbers in a row, got shape {array.shape}")
        if not (np.all(np.isfinite(array)) and np.all(array > 0)):
            raise ValueError(f"{name} must be finite and positive to be drawn on logarithmic axes")
        logs.append(np.log(array))
    if logs[0].size != logs[1].size:
        raise ValueError(f"x and y must be of one length, got {logs[0].size} and {logs[1].size}")
    if np.ptp(logs[0]) == 0.0:
        raise ValueError("x must hold at least two different values")
    return float(np.polyfit(logs[0], logs[1], 1)[0])


def _convex_high(p: _Size, diameter: float, smoothness: float | None) -> float:
    if p.delta > 0.0:
        rate = (p.s * _log(p.d) * _log(1 / p.delta)) ** 0.25 / math.sqrt(p.epsilon * p.n)
        return float(p.scale * diameter * rate)
    h = p.scale / diameter if smoothness is None else check_positive("smoothness", smoothness)
    rate = (p.s * _log(p.d) / (p.epsilon * p.n)) ** (1 / 3)
    return float(p.scale ** (2 / 3) * h ** (1 / 3) * diameter ** (4 / 3) * rate)


def _dense(p: _Size) -> float:
    """R_{eps,delta} and R_eps: the rates without sparsity."""
    if p.delta > 0.0:
        return math.sqrt(p.d * _log(1 / p.delta)) / (p.epsilon * p.n)
    return p.d / (p.epsilon * p.n)


def _three_regimes(scale: float, high: float, low: float) -> Rate:
    return Rate({CONSTANT: scale, HIGH_DIMENSIONAL: scale * high, LOW_DIMENSIONAL: scale * low})


def _log(x: float) -> float:
    return max(1.0, math.log(x))


def _checked(n: int, d: int, s: int, epsilon: float, delta: float, **scale: float) -> _Size:
    n, d, s = check_count("n", n), check_count("d", d), check_count("s", s)
    if s > d:
        raise ValueError(f"s must be at most d = {d}, got {s}")
    if not 0.0 <= check_finite("delta", delta) < 1.0:
        raise ValueError(f"delta must lie in [0, 1), got {delta}")
    ((name, value),) = scale.items()
    return _Size(n, d, s, check_epsilon(epsilon), float(delta), check_positive(name, value))
