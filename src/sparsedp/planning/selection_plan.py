"""What AdaFEST's threshold does, predicted from public numbers alone."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from sparsedp.core.tables import TableShape


@dataclass(frozen=True)
class ThresholdedRows:
    """Rows whose noisy count `V_hat[j] + N(0, std^2)` is compared with a threshold tau (FEST, Algorithm 1).

    `std` is sigma1 C1. Selectable tables take part; always-on tables have noise on every row in every step.
    """

    selectable: tuple[TableShape, ...]
    always_on: tuple[TableShape, ...]
    std: float
    expected_batch_size: int

    @property
    def rows(self) -> int:
        """Rows that take part."""
        return sum(table.rows for table in self.selectable)

    @property
    def always_on_size(self) -> int:
        """Coordinates that get noise in every step whatever the threshold."""
        return sum(table.size for table in self.always_on)

    @property
    def dense_size(self) -> int:
        """Coordinates that DP-SGD puts noise on: all of them."""
        return self.always_on_size + sum(table.size for table in self.selectable)

    def false_positive_probability(self, tau: float) -> float:
        """The chance `Psi(tau / std)` that a row nobody touched survives."""
        return float(ndtr(-tau / self.std))

    def false_positives(self, table: TableShape, tau: float) -> float:
        """The expected rows of an untouched table that survive."""
        return table.rows * self.false_positive_probability(tau)

    def touched_bound(self, table: TableShape, tau: float) -> float:
        """An upper bound, for any data, on the expected number of touched rows of a table that survive.

        A row touched m times has a weight of at most m, so it survives with probability at most
        `Psi((tau - m) / std)`. A batch has `expected_batch_size * values` touches in expectation, and a row that
        takes m of them adds at most Psi((tau - m)/std) / m for each: no data does better than the best m.
        """
        touches, best = self.expected_batch_size * table.values, float(self._survival_by_touches(tau).max())
        return min(table.rows, touches * best)

    def rows_bound(self, table: TableShape, tau: float) -> float:
        """An upper bound on the expected rows of a selectable table that get noise in a step."""
        return min(table.rows, self.false_positives(table, tau) + self.touched_bound(table, tau))

    def gradient_size(self, tau: float) -> float:
        """An upper bound on the expected embedding coordinates that get noise in a step."""
        rows = sum(table.dim * self.rows_bound(table, tau) for table in self.selectable)
        return self.always_on_size + rows

    def threshold_for_gradient_size(self, size: float) -> float:
        """The tau at which `gradient_size` is `size`: no data makes the expected gradient larger."""
        low, high = 0.0, float(self._touches[-1]) + 40 * self.std
        if not self.gradient_size(high) < size < self.gradient_size(low):
            raise ValueError(
                f"gradient_size must lie between {self.always_on_size} (the always-on tables) and "
                f"{self.gradient_size(low):.0f} (a threshold of zero: half of all rows), got {size}"
            )
        return float(brentq(lambda tau: self.gradient_size(tau) - size, low, high, xtol=1e-9 * self.std))

    def count_for_survival(self, tau: float, probability: float, weight: float) -> float:
        """How many examples of a batch must touch a row, each with `weight`, for it to survive this often."""
        return max(0.0, (tau + self.std * float(ndtri(probability))) / weight)

    @functools.cached_property
    def _touches(self) -> NDArray[np.float64]:
        # An example touches a row at most once; no Poisson batch is ten deviations above its mean.
        return np.geomspace(1, self.expected_batch_size + 10 * math.sqrt(self.expected_batch_size) + 10, 4096)

    def _survival_by_touches(self, tau: float) -> NDArray[np.float64]:
        return np.asarray(ndtr((self._touches - tau) / self.std)) / self._touches
