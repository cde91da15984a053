"""Problems that are sums over blocks of s coordinates, an example being a block: data, risks and losses.

`well` is a loss |x_j| / sqrt(s) on each coordinate, minimised at 0, where noise alone costs; `ramp` falls along the
block to an end at distance D, where regularisation costs; `Hill` is its nonconvex form, which a method must walk down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

from sparsedp.convex.sgd.protocol import LinearModelLoss
from sparsedp.core.arrays import F64, I64


def block_rows(n: int, d: int, s: int, k: int) -> sparse.csr_array:
    """n rows, the i-th the unit vector along block i mod k."""
    ids = (np.arange(n) % k)[:, None] * s + np.arange(s)
    values = np.full(n * s, 1.0 / math.sqrt(s))
    return sparse.csr_array((values, ids.ravel(), np.arange(0, n * s + 1, s)), shape=(n, d))


@dataclass(frozen=True)
class Blocks:
    """A risk that is a sum over blocks: `weights[k] * shape(margins of block k)`, the rest of d untouched."""

    weights: F64
    s: int
    d: int
    shape: Callable[[F64], tuple[F64, F64, F64]]
    per_coordinate: bool = False

    def value_and_gradient(self, x: F64) -> tuple[float, F64]:
        """F and its gradient."""
        value, slopes, _ = self.shape(self._margins(x))
        gradient = np.zeros(self.d)
        gradient[: self._size] = self._spread(slopes)
        weights = self.weights[:, None] / math.sqrt(self.s) if self.per_coordinate else self.weights[:, None]
        return float((weights * value).sum()), gradient

    def hessian(self, x: F64) -> Callable[[F64], F64]:
        """Products with the Hessian."""
        _, _, bends = self.shape(self._margins(x))

        def product(v: F64) -> F64:
            out = np.zeros(self.d)
            out[: self._size] = self._spread(bends * self._margins(v))
            return out

        return product

    def gradient_norm(self, x: F64) -> float:
        """The norm of the gradient."""
        return float(np.linalg.norm(self.value_and_gradient(x)[1]))

    @property
    def _size(self) -> int:
        return self.weights.size * self.s

    def _margins(self, x: F64) -> F64:
        blocks = x[: self._size].reshape(-1, self.s)
        return blocks if self.per_coordinate else blocks.sum(axis=1, keepdims=True) / math.sqrt(self.s)

    def _spread(self, slopes: F64) -> F64:
        return np.broadcast_to(
            self.weights[:, None] * slopes / math.sqrt(self.s), (self.weights.size, self.s)
        ).ravel()


def well(width: float) -> Callable[[F64], tuple[F64, F64, F64]]:
    """|m| with its corner rounded over `width`: value, slope, bend."""

    def shape(m: F64) -> tuple[F64, F64, F64]:
        inside = np.abs(m) < width
        value = np.where(inside, m**2 / (2 * width), np.abs(m) - width / 2)
        return value, np.clip(m / width, -1.0, 1.0), inside / width

    return shape


def ramp(end: float, width: float) -> Callable[[F64], tuple[F64, F64, F64]]:
    """Falls with slope 1 until `end`, rounded over the last `width`; flat beyond."""

    def shape(m: F64) -> tuple[F64, F64, F64]:
        lack = np.maximum(end - m, 0.0)
        value = np.where(lack < width, lack**2 / (2 * width), lack - width / 2)
        return value, -np.minimum(lack / width, 1.0), ((lack > 0.0) & (lack < width)) / width

    return shape


class Hill:
    """`1 - tanh(m)`: a walk down from slope 1, not convex."""

    smoothness = 4.0 / (3.0 * math.sqrt(3.0))

    def value(self, margins: F64, targets: F64) -> F64:
        """One an example."""
        return 1.0 - np.tanh(margins[:, 0])

    def slopes(self, margins: F64, targets: F64) -> F64:
        """Minus sech squared."""
        return -(np.cosh(np.clip(margins, -300.0, 300.0)) ** -2.0)


def hill(m: F64) -> tuple[F64, F64, F64]:
    """`Hill` of the margins of blocks: value, slope, bend."""
    slopes = Hill().slopes(m, m)
    return 1.0 - np.tanh(m), slopes, -2.0 * slopes * np.tanh(m)


@dataclass
class RecordingLoss:
    """A loss that records the norm of the risk's gradient wherever it is asked for gradients: at every iterate."""

    loss: LinearModelLoss
    risk: Blocks
    squared_norms: list[float] = field(default_factory=list)

    @property
    def size(self) -> int:
        """As the loss."""
        return self.loss.size

    @property
    def dimension(self) -> int:
        """As the loss."""
        return self.loss.dimension

    def value(self, x: F64, rows: I64) -> F64:
        """As the loss."""
        return self.loss.value(x, rows)

    def gradient_rows(self, x: F64, rows: I64) -> sparse.csr_array:
        """As the loss, and records the norm."""
        self.squared_norms.append(self.risk.gradient_norm(x) ** 2)
        return self.loss.gradient_rows(x, rows)
