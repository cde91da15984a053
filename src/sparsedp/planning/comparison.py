"""DP-FEST and DP-SGD beside AdaFEST: their noise, their gradient size, and when fewer rows are worth it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.optimize import brentq

from sparsedp.core.tables import TableShape


@dataclass(frozen=True)
class DPSGDPlan:
    """DP-SGD: every coordinate of every table gets noise in every step."""

    noise_multiplier: float
    gradient_size: int


@dataclass(frozen=True)
class FESTPlan:
    """DP-FEST: `rows` rows are chosen once from a histogram with noise, and only they are trained.

    `price` is the relative growth of training noise that the choice of rows costs. `histogram_std` is the
    noise on a row's count over the whole data set: rows whose counts differ by less are ordered by chance.
    """

    mu: float
    noise_multiplier: float
    price: float
    rows: int
    gradient_size: int
    reduction: float
    histogram_std: float
    largest_truncation: float


def widest_rows(tables: Sequence[TableShape], rows: int) -> int:
    """The most coordinates that `rows` rows of these tables can have."""
    size = 0
    for table in sorted(tables, key=lambda table: -table.dim):
        taken = min(rows, table.rows)
        size, rows = size + taken * table.dim, rows - taken
    return size


def rows_within(tables: Sequence[TableShape], size: float) -> int:
    """The most rows whose coordinates are within `size` whichever they are; at least one."""
    rows = 0
    for table in sorted(tables, key=lambda table: -table.dim):
        taken = min(table.rows, int(size // table.dim))
        rows, size = rows + taken, size - taken * table.dim
        if taken < table.rows:
            break
    return max(rows, 1)


def excess_loss_bound(truncation: float, noise_norm: float, steps: int) -> float:
    """Lemma 3.1 of FEST in units of `R L / sqrt(steps)`: bias `truncation`, noise of norm `noise_norm`."""
    return math.hypot(1 + truncation, noise_norm) + truncation * math.sqrt(steps)


def largest_truncation(noise_norm: float, dense_noise_norm: float, steps: int) -> float:
    """The fraction gamma of the gradient that may be cut off before DP-SGD's bound is the better one.

    FEST equation (2), `sqrt(L^2 (1 + gamma)^2 + h sigma^2) + gamma L sqrt(T) < sqrt(L^2 + D sigma^2)`, solved
    for gamma. Gradients are clipped to C2, so L = C2 = 1; the noise norms are `sqrt(h) sigma2 / B` and
    `sqrt(D) sigma / B`. Zero means that cutting off never pays by this bound.
    """
    dense = excess_loss_bound(0.0, dense_noise_norm, steps)
    if excess_loss_bound(0.0, noise_norm, steps) >= dense:
        return 0.0
    if excess_loss_bound(1.0, noise_norm, steps) <= dense:
        return 1.0
    return float(brentq(lambda cut: excess_loss_bound(cut, noise_norm, steps) - dense, 0.0, 1.0))


@dataclass(frozen=True)
class AgainstDPSGD:
    """How a method with noise on fewer coordinates compares with DP-SGD on the same batches.

    `dense_parameters` are the coordinates outside the tables, which get noise under every method.
    """

    dpsgd: DPSGDPlan
    dense_parameters: int
    expected_batch_size: int
    steps: int

    def largest_truncation(self, gradient_size: float, noise_multiplier: float) -> float:
        """What a method with this noise on `gradient_size` embedding coordinates may cut off."""
        dense = self._noise_norm(self.dpsgd.gradient_size, self.dpsgd.noise_multiplier)
        return largest_truncation(self._noise_norm(gradient_size, noise_multiplier), dense, self.steps)

    def _noise_norm(self, gradient_size: float, noise_multiplier: float) -> float:
        """The expected norm of the noise in the mean gradient, over C2."""
        coordinates = gradient_size + self.dense_parameters
        return math.sqrt(coordinates) * noise_multiplier / self.expected_batch_size
