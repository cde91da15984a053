"""What an optimiser here needs of a loss: values and sparse gradients, example by example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sparsedp.mechanisms.histogram import Floats, Ints

Link = Callable[[Floats, Floats], Floats]


class SparseLoss(Protocol):
    """A loss `f(x, z_i)` over examples i = 0 .. size - 1, with x of `dimension` coordinates."""

    @property
    def size(self) -> int:
        """How many examples there are (private: the optimiser is given a public size of its own)."""
        ...

    @property
    def dimension(self) -> int:
        """How many coordinates x has."""
        ...

    def value(self, x: Floats, rows: Ints) -> Floats:
        """`f(x, z_i)` for each i in `rows`. An example's value must depend on no other example."""
        ...

    def gradient_rows(self, x: Floats, rows: Ints) -> sparse.csr_array:
        """The gradients in x for each i in `rows`, one a row, stored by their nonzero coordinates."""
        ...


@dataclass(frozen=True)
class LinearModelLoss:
    """`f(x, (a, y)) = value(<a, x>, y)`; the gradient `derivative(<a, x>, y) a` is as sparse as a."""

    features: sparse.csr_array
    targets: Floats
    link_value: Link
    link_derivative: Link

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", sparse.csr_array(self.features).astype(np.float64))
        targets = np.asarray(self.targets, dtype=np.float64)
        if targets.shape != (self.size,):
            raise ValueError(f"targets must be one per example, got {targets.shape} for {self.size} examples")
        object.__setattr__(self, "targets", targets)

    @property
    def size(self) -> int:
        """How many examples there are."""
        return int(self.features.shape[0])

    @property
    def dimension(self) -> int:
        """How many features there are."""
        return int(self.features.shape[1])

    def value(self, x: Floats, rows: Ints) -> Floats:
        """One loss an example."""
        return np.asarray(self.link_value(self.features[rows] @ x, self.targets[rows]))

    def gradient_rows(self, x: Floats, rows: Ints) -> sparse.csr_array:
        """The features of the examples, each times its derivative."""
        chosen = self.features[rows]
        slopes = np.asarray(self.link_derivative(chosen @ x, self.targets[rows]))
        scaled = chosen.data * np.repeat(slopes, np.diff(chosen.indptr))
        return sparse.csr_array((scaled, chosen.indices, chosen.indptr), shape=chosen.shape)


def check_start(start: ArrayLike, loss: SparseLoss) -> Floats:
    """A copy of the starting point that an optimiser may move, in its own precision."""
    x = np.array(start)
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float64)
    if x.shape != (loss.dimension,):
        raise ValueError(f"start must have shape ({loss.dimension},), got {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("start must be finite, got NaN or an infinity")
    return x
