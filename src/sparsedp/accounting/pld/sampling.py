"""Poisson sampling of any pair."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from sparsedp.accounting.pld.pairs import Pair
from sparsedp.core.arrays import F64

_LARGE = 700.0  # e^700 is still a float


def sampled_loss(loss: F64, rate: float) -> F64:
    """ln(1 - rate + rate e^loss)."""
    small = np.minimum(loss, _LARGE)
    return np.where(loss > _LARGE, loss + math.log(rate), np.log1p(rate * np.expm1(small)))


def unsampled_loss(loss: F64, rate: float) -> F64:
    """The inverse of `sampled_loss`, ln(1 + (e^loss - 1)/rate); -inf at and below the least, ln(1 - rate)."""
    with np.errstate(divide="ignore", over="ignore"):
        near = np.log1p(np.maximum(np.expm1(np.minimum(loss, 1.0)) / rate, -1.0))
    far = loss - math.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(loss, 1.0)))
    return np.where(loss > 1, far, near)


@dataclass(frozen=True)
class PoissonSampled(Pair):
    """(1 - rate) Q + rate P against Q: the record is in the batch with probability `rate`.

    Guarantee: dominates any mechanism dominated by (P, Q) run on a Poisson sample, add-or-remove-one (Zhu,
    Dong and Wang 2022, theorem 11); its remove direction has delta(x) = rate * delta_PQ(ln(1 + (e^x -
    1)/rate)), and the add direction is its reversal. Everything that reads one batch must be *inside* the
    pair that is sampled.
    """

    pair: Pair
    rate: float
    symmetric: ClassVar[bool] = False

    @override
    def cells(self, edges: F64) -> tuple[F64, F64]:
        inner = unsampled_loss(edges, self.rate)
        start = int(np.searchsorted(inner, -np.inf, side="right"))  # edges below the least loss: empty cells
        p, q = self.pair.cells(inner[start:]) if start < len(edges) else (np.ones(1), np.ones(1))
        empty = np.zeros(start)
        return np.concatenate([empty, (1 - self.rate) * q + self.rate * p]), np.concatenate([empty, q])

    @override
    def span(self, tail: float) -> tuple[float, float]:
        low, high = sampled_loss(np.array(self.pair.span(tail)), self.rate)
        return float(low), float(high)

    @override
    def sketch(self, tail: float) -> F64:
        return np.unique(sampled_loss(self.pair.sketch(tail), self.rate))
