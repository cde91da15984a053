"""The exact Gaussian mechanism (Balle and Wang 2018): conversions between delta, epsilon and sigma.

With `mu` = sensitivity / standard deviation, the pair N(0, 1) against N(mu, 1) has

    delta_G(eps; mu) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

Both terms are written with the scaled complementary error function, since e^eps phi(mu/2 + eps/mu) =
phi(eps/mu - mu/2): the exponentials cancel analytically instead of in floating point, so delta has full relative
precision down to 1e-300.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from sparsedp.core.validation import check_delta, check_finite, check_non_negative

_LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
_FAR_LEFT = -5.0  # down to here the Mills ratio loses no digits
_LARGEST_MU = 1e150  # its square is a float
_ROUNDING = 1e-11  # solutions are moved this far, relatively, to the safe side of the root


def _mills(x: float) -> float:
    """Psi(x) / phi(x), the Mills ratio."""
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def log_analytic_gaussian_delta(epsilon: float, mu: float) -> float:
    """ln delta_G(epsilon; mu), for any real epsilon and mu >= 0; -inf where it is zero."""
    if mu == 0:
        return math.log(-math.expm1(epsilon)) if epsilon < 0 else -math.inf
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    log_density = -low * low / 2 - _LOG_ROOT_TWO_PI
    if low > _FAR_LEFT:
        gap = _mills(low) - _mills(high)
        if gap <= 1e-6 * _mills(low):  # mu is tiny: the derivative of the Mills ratio is t R(t) - 1
            middle = (low + high) / 2
            gap = mu * max(1 - middle * _mills(middle), 0.0)
        return log_density + math.log(gap) if gap > 0 else -math.inf
    log_first = float(log_ndtr(-low))
    if high < 0:  # epsilon far below zero: delta is close to 1 - e^epsilon
        log_second = epsilon + float(log_ndtr(-high))
    else:
        log_second = log_density + math.log(_mills(high))
    return log_first + math.log1p(-math.exp(min(log_second - log_first, -1e-300)))


def analytic_gaussian_delta(epsilon: float, mu: float) -> float:
    """The exact delta at `epsilon` of a Gaussian mechanism with sensitivity / standard deviation `mu`."""
    epsilon = check_non_negative("epsilon", epsilon)
    mu = check_non_negative("mu", mu)
    return math.exp(log_analytic_gaussian_delta(epsilon, mu))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """The root of a function that changes sign between `low` and `high`, to the last bits."""
    return float(brentq(function, low, high, xtol=1e-14, rtol=8.9e-16, maxiter=500))


def analytic_gaussian_sigma(epsilon: float, delta: float) -> float:
    """sigma_AG: the smallest noise multiplier whose Gaussian mechanism is (epsilon, delta)-DP.

    Guarantee: releasing f(x) + N(0, (Delta sigma)^2) with l2 sensitivity Delta is (epsilon, delta)-DP under the
    adjacency of Delta. Proof: Balle and Wang 2018, theorem 8; the root is solved for in ln mu and rounded up.
    """
    epsilon = check_non_negative("epsilon", epsilon)
    log_delta = math.log(check_delta(delta))

    def excess(log_mu: float) -> float:
        return max(log_analytic_gaussian_delta(epsilon, math.exp(log_mu)), -1e300) - log_delta

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
        if low < -700:  # sigma = e^700 is about the largest float
            raise ValueError(f"delta is too small to calibrate a Gaussian for, got {delta}")
    while excess(high) < 0:
        high *= 2
        if high > 340:  # mu = e^340: its square is the largest float
            raise ValueError(f"epsilon is too large to calibrate a Gaussian for, got {epsilon}")
    return math.exp(-_root(excess, low, high)) * (1 + _ROUNDING)


def analytic_gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest epsilon >= 0 at which a Gaussian mechanism with `mu` is (epsilon, delta)-DP."""
    log_delta = math.log(check_delta(delta))
    mu = check_finite("mu", check_non_negative("mu", mu))
    if mu > _LARGEST_MU:
        return math.inf

    def excess(epsilon: float) -> float:
        return max(log_analytic_gaussian_delta(epsilon, mu), -1e300) - log_delta

    if excess(0.0) <= 0:
        return 0.0
    high = mu * mu / 2 + mu
    while excess(high) > 0:
        high *= 2
    return _root(excess, 0.0, high) * (1 + _ROUNDING)
