"""The exponential mechanism and its kin: mechanisms of bounded range, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from sparsedp.accounting.pld.pairs import SKETCH, Pair, Weighted, randomized_response
from sparsedp.core.arrays import F64


@dataclass(frozen=True)
class BoundedRange(Pair):
    """One bounded-range draw: the pair whose delta is the largest of any bounded-range mechanism.

    At a loss between -epsilon and epsilon that is `(1 - e^((loss - epsilon)/2))^2 / (1 - e^-epsilon)` (Dong, Durfee
    and Rogers 2020). Writing x = e^loss, it is (1 - v sqrt(x))^2 / (1 - v^2) with v = e^(-epsilon/2): convex in
    x, so it belongs to a pair. Q(loss > ln x) = -d delta/dx = (v/sqrt(x) - v^2) / (1 - v^2), and P(loss > ln x) =
    delta + x Q = (1 - v sqrt(x)) / (1 - v^2). Hence no atoms, and on [-epsilon, epsilon] densities
    proportional to e^(loss/2) under P and e^(-loss/2) under Q.
    """

    epsilon: float
    symmetric: ClassVar[bool] = True

    @override
    def cells(self, edges: F64) -> tuple[F64, F64]:
        inside = np.concatenate(
            [[-self.epsilon], np.clip(edges, -self.epsilon, self.epsilon), [self.epsilon]]
        )
        low, high = inside[:-1], inside[1:]
        # From the heavier end of a cell: nothing is above 1, however wide the cell.
        width = np.expm1((low - high) / 2) / math.expm1(-self.epsilon)
        return np.exp((high - self.epsilon) / 2) * width, np.exp(-(low + self.epsilon) / 2) * width

    @override
    def span(self, tail: float) -> tuple[float, float]:
        return -self.epsilon, self.epsilon

    @override
    def sketch(self, tail: float) -> F64:
        return np.linspace(-self.epsilon, self.epsilon, SKETCH)


def laplace(epsilon: float) -> Pair:
    """Laplace noise of scale 1/epsilon, moved by one.

    Its loss is +-epsilon outside the two centres, an atom each, and between them has a density proportional
    to e^(loss/2) under P: a bounded-range draw with probability (1 - e^-epsilon)/2, else randomised
    response.
    """
    return Weighted(-math.expm1(-epsilon) / 2, BoundedRange(epsilon), randomized_response(epsilon))
