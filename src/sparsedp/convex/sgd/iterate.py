"""The iterate of SGD and the average of all iterates, updated at the cost of the sparse move."""

from __future__ import annotations

import math

import numpy as np

from sparsedp.core.arrays import F64
from sparsedp.core.counts import SparseCounts


class Iterate:
    """x^0, x^1, ... and their average, moved in place by sparse vectors within a ball around the origin.

    The sum of all iterates so far is stored as `visits * x + rest`: a sparse move of x changes `rest` in the
    same few coordinates. Only a projection that really shrinks x touches every coordinate.
    """

    def __init__(self, x: F64, radius: float) -> None:
        self.x = x
        self._radius = radius
        self._square = float(x @ x)
        self._visits = 0.0
        self._steps = 0
        self._rest: F64 | None = None
        self._stay_inside()
        self._visit()

    def move(self, direction: SparseCounts, factor: float) -> None:
        """Add `factor * direction`, return to the ball, and count the point reached as visited."""
        ids, change = direction.ids, factor * direction.values
        before = self.x[ids].astype(np.float64)
        self.x[ids] = before + change
        moved = self.x[ids].astype(np.float64) - before
        self._sum_of_rest()[ids] -= self._visits * moved
        self._square += float(2.0 * before @ moved + moved @ moved)
        self._stay_inside()
        self._visit()

    def average(self) -> F64:
        """The mean of all points visited, the start among them."""
        return (self._visits * self.x.astype(np.float64) + self._sum_of_rest()) / self._steps

    def _visit(self) -> None:
        self._visits += 1.0
        self._steps += 1

    def _stay_inside(self) -> None:
        if self._square <= self._radius**2:
            return
        # `visits * x` is put away before x is scaled, for a visit to the old x is not one to the new.
        rest = self._sum_of_rest()
        rest += self._visits * self.x.astype(np.float64)
        self._visits = 0.0
        self.x *= self._radius / math.sqrt(float(self.x @ self.x))
        self._square = float(self.x @ self.x)

    def _sum_of_rest(self) -> F64:
        if self._rest is None:
            self._rest = np.zeros(self.x.shape)
        return self._rest
