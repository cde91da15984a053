"""Budget filters: adaptive composition where each cost may depend on earlier outputs.

`admits` tells whether a cost fits; `spend` charges it, and raises `BudgetExceeded` instead of exceeding the budget.
The composition of a fixed run may be computed in advance; where the costs themselves depend on earlier outputs,
only these compositions hold.
"""

from __future__ import annotations

import math
from typing import Protocol, TypeVar

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from typing_extensions import override

from sparsedp.accounting.analytic_gaussian import analytic_gaussian_sigma
from sparsedp.accounting.budget import BudgetExceeded
from sparsedp.accounting.pld.pairs import LARGEST_LOSS
from sparsedp.core.validation import (
    check_delta,
    check_epsilon,
    check_finite,
    check_non_negative,
    check_positive,
    check_scale,
)

_LEAST_EPSILON = 1e-9

Cost = TypeVar("Cost", contravariant=True)


class Filter(Protocol[Cost]):
    """Adaptive composition within a budget fixed in advance."""

    def admits(self, cost: Cost) -> bool:
        """Whether a release of this cost fits in addition to those charged."""

    def spend(self, cost: Cost) -> None:
        """Charge a release before it is made; raises `BudgetExceeded`, charging nothing, if it does not fit."""


class _Total:
    """A sum of non-negative costs, rounded once and not at every addition."""

    def __init__(self) -> None:
        self._terms: list[float] = []

    def with_one_more(self, cost: float) -> float:
        try:
            return math.fsum([*self._terms, cost])
        except OverflowError:
            return math.inf

    def add(self, cost: float) -> None:
        # fsum is exact: what the rounded total leaves out is carried along as a second term.
        total = self.with_one_more(cost)
        self._terms = [total, math.fsum([*self._terms, cost, -total])]


class ZCDPFilter(Filter[float]):
    """Costs are rho in zero-concentrated DP; a Gaussian of noise multiplier sigma costs 1 / (2 sigma^2).

    Guarantee: all releases together are `rho`-zCDP, under the adjacency of the costs. Proof: sum rho_t <=
    rho means sum order * rho_t <= order * rho at every Renyi order at once, and at each there is a filter
    (Feldman and Zrnic 2021).
    """

    def __init__(self, rho: float) -> None:
        self.rho = check_positive("rho", rho)
        self._total = _Total()

    @classmethod
    def for_epsilon(cls, epsilon: float, delta: float) -> ZCDPFilter:
        """With the largest rho that implies (epsilon, delta)-DP."""
        epsilon, delta = check_epsilon(epsilon), check_delta(delta)
        if not _LEAST_EPSILON <= epsilon <= LARGEST_LOSS:
            raise ValueError(
                f"epsilon must lie between {_LEAST_EPSILON:g} and {LARGEST_LOSS:g}, got {epsilon:g}"
            )

        def excess(log_rho: float) -> float:
            return zcdp_epsilon(math.exp(log_rho), delta) - epsilon

        low = high = math.log(epsilon)
        while excess(low) > 0:
            low -= 2
        while excess(high) <= 0:
            high += 2
        return cls(math.exp(float(brentq(excess, low, high, xtol=1e-12))) * (1 - 1e-9))

    @property
    def spent(self) -> float:
        """What has been charged."""
        return self._total.with_one_more(0.0)

    @override
    def admits(self, cost: float) -> bool:
        return self._total.with_one_more(check_non_negative("cost", cost)) <= self.rho

    @override
    def spend(self, cost: float) -> None:
        if not self.admits(cost):
            raise BudgetExceeded(
                f"a cost of rho {cost:g} does not fit: {self.spent:g} of {self.rho:g} are spent"
            )
        self._total.add(cost)


class GDPFilter(Filter[float]):
    """Costs are mu in Gaussian DP; a Gaussian of noise multiplier sigma costs 1 / sigma.

    Guarantee: all releases together are `mu`-GDP, under the adjacency of the costs. Proof: sum mu_t^2 <=
    mu^2 is a filter (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023).
    """

    def __init__(self, mu: float) -> None:
        self.mu = check_scale("mu", mu)
        self._total = _Total()

    @classmethod
    def for_epsilon(cls, epsilon: float, delta: float) -> GDPFilter:
        """With the largest mu that implies (epsilon, delta)-DP."""
        return cls(1 / analytic_gaussian_sigma(epsilon, delta))

    @property
    def spent(self) -> float:
        """What has been charged, as one mu."""
        return math.sqrt(self._total.with_one_more(0.0))

    @override
    def admits(self, cost: float) -> bool:
        cost = check_non_negative("cost", cost)
        return cost <= self.mu and self._total.with_one_more(cost * cost) <= self.mu * self.mu

    @override
    def spend(self, cost: float) -> None:
        if not self.admits(cost):
            raise BudgetExceeded(
                f"a cost of mu {cost:g} does not fit: {self.spent:g} of {self.mu:g} are spent"
            )
        self._total.add(cost * cost)


class RenyiFilter(Filter[float]):
    """Costs are Renyi divergences at one `order`, fixed in advance.

    Guarantee: all releases together are (`order`, `budget`)-RDP, under the adjacency of the costs. Proof:
    Feldman and Zrnic 2021. The order must be chosen before the run: the best order for the actual costs would
    depend on the outputs.
    """

    def __init__(self, order: float, budget: float) -> None:
        self.order = check_finite("order", order)
        if self.order <= 1:
            raise ValueError(f"order must be above 1, got {order}")
        self.budget = check_positive("budget", budget)
        self._total = _Total()

    @classmethod
    def for_epsilon(cls, epsilon: float, delta: float, order: float) -> RenyiFilter:
        """With the largest divergence that implies (epsilon, delta)-DP (Canonne, Kamath and Steinke 2020)."""
        epsilon, delta = check_epsilon(epsilon), check_delta(delta)
        if check_finite("order", order) <= 1:
            raise ValueError(f"order must be above 1, got {order}")
        budget = epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)
        if budget <= 0:
            raise ValueError(f"order {order:g} is too low for epsilon {epsilon:g} at delta {delta:g}")
        return cls(order, budget)

    @property
    def spent(self) -> float:
        """What has been charged."""
        return self._total.with_one_more(0.0)

    @override
    def admits(self, cost: float) -> bool:
        return self._total.with_one_more(check_non_negative("cost", cost)) <= self.budget

    @override
    def spend(self, cost: float) -> None:
        if not self.admits(cost):
            raise BudgetExceeded(
                f"a divergence of {cost:g} at order {self.order:g} does not fit: "
                f"{self.spent:g} of {self.budget:g} are spent"
            )
        self._total.add(cost)


class AdaptiveFilter(Filter[tuple[float, float]]):
    """Costs are pairs (epsilon_t, delta_t): fully adaptive composition, as bias-reduced SGD uses it.

    Guarantee: all releases together are (`epsilon`, `delta`)-DP, under the adjacency of the costs, if every
    release is (epsilon_t, delta_t)-DP given the ones before. With delta = `slack` + rest, the filter stops
    before sqrt(2 ln(1/slack) sum epsilon_t^2) + sum epsilon_t^2 / 2 > epsilon or sum delta_t > rest. Proof:
    Whitehouse, Ramdas, Rogers and Wu 2023. The second term is outside the root: inside it, the budget of
    epsilon = 1 would admit a sum of squares that costs more than 1.
    """

    def __init__(self, epsilon: float, delta: float, slack: float | None = None) -> None:
        self.epsilon = check_epsilon(epsilon)
        self.delta = check_delta(delta)
        self.slack = check_delta(self.delta / 2 if slack is None else slack, "slack")
        if self.slack > self.delta:
            raise ValueError(f"slack must be at most delta, got {slack} above {delta}")
        self._squares = _Total()
        self._deltas = _Total()

    def _reached(self, squares: float) -> float:
        return math.sqrt(2 * -math.log(self.slack) * squares) + squares / 2

    @property
    def spent(self) -> tuple[float, float]:
        """The (epsilon, delta) of all releases charged so far."""
        return self._reached(self._squares.with_one_more(0.0)), self.slack + self._deltas.with_one_more(0.0)

    @override
    def admits(self, cost: tuple[float, float]) -> bool:
        epsilon, delta = check_non_negative("cost", cost[0]), check_non_negative("cost", cost[1])
        within = self._reached(self._squares.with_one_more(epsilon * epsilon)) <= self.epsilon
        return within and self._deltas.with_one_more(delta) <= self.delta - self.slack

    @override
    def spend(self, cost: tuple[float, float]) -> None:
        if not self.admits(cost):
            raise BudgetExceeded(
                f"a cost of ({cost[0]:g}, {cost[1]:g}) does not fit: ({self.spent[0]:g}, {self.spent[1]:g}) "
                f"of ({self.epsilon:g}, {self.delta:g}) are spent"
            )
        self._squares.add(cost[0] * cost[0])
        self._deltas.add(cost[1])


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The least epsilon that rho-zCDP implies at `delta` (Canonne, Kamath and Steinke 2020, over all orders)."""
    rho, delta = check_positive("rho", rho), check_delta(delta)

    def at(log_excess: float) -> float:
        excess = math.exp(log_excess)  # the order, less 1
        return (
            rho * (1 + excess)
            + log_excess
            - math.log1p(excess)
            - (math.log(delta) + math.log1p(excess)) / excess
        )

    # Without the logarithms of the order the least is at sqrt(ln(1/delta) / rho).
    centre = 0.5 * (math.log(-math.log(delta)) - math.log(rho))
    grid = centre + np.linspace(-40, 40, 161)
    best = int(np.argmin([at(point) for point in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    minimum = minimize_scalar(at, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    return max(float(minimum.fun), 0.0)
