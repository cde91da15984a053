"""What an optimiser here needs of a loss: values and sparse gradients, example by example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sparsedp.convex.clip import zero_other_rows
from sparsedp.core.arrays import F64, I64
from sparsedp.core.validation import check_count


class Link(Protocol):
    """A loss of margins, one row of them an example; every `MarginLoss` is one, and it need not be convex."""

    def value(self, margins: F64, targets: F64) -> F64:
        """The loss of each example."""
        ...

    def slopes(self, margins: F64, targets: F64) -> F64:
        """The derivatives in the margins, of their shape."""
        ...


@runtime_checkable
class CheckedLink(Protocol):
    """A link that knows which targets it is made for."""

    @property
    def empty_target(self) -> float:
        """One of them, for examples that count as zero."""
        ...

    def check_targets(self, targets: F64) -> None:
        """Refuse other targets."""
        ...


class SparseLoss(Protocol):
    """A loss `f(x, z_i)` over examples i = 0 .. size - 1, with x of `dimension` coordinates."""

    @property
    def size(self) -> int:
        """How many examples there are (private: the optimiser gets a separate public size)."""
        ...

    @property
    def dimension(self) -> int:
        """How many coordinates x has."""
        ...

    def value(self, x: F64, rows: I64) -> F64:
        """`f(x, z_i)` for each i in `rows`. An example's value must depend on no other example."""
        ...

    def gradient_rows(self, x: F64, rows: I64) -> sparse.csr_array:
        """The gradients in x for each i in `rows`, one a row, stored by their nonzero coordinates."""
        ...


@dataclass(frozen=True)
class LinearModelLoss:
    """The loss `link(a W, y)` of a linear model, x = W as one vector: its gradient is as sparse as the features a.

    `outputs` is how many columns W has: 1, or one a class. An example whose target is not finite counts as one
    without features; other targets are checked by a link that knows its own.
    """

    features: sparse.csr_array
    targets: F64
    link: Link
    outputs: int = 1

    def __post_init__(self) -> None:
        check_count("outputs", self.outputs)
        object.__setattr__(self, "features", sparse.csr_array(self.features).astype(np.float64))
        targets = np.asarray(self.targets, dtype=np.float64)
        if targets.shape != (self.size,):
            raise ValueError(f"targets must be one per example, got {targets.shape} for {self.size} examples")
        known = np.isfinite(targets)
        object.__setattr__(self, "features", zero_other_rows(self.features, known))
        if isinstance(self.link, CheckedLink):
            self.link.check_targets(targets[known])
            targets = np.where(known, targets, self.link.empty_target)
        object.__setattr__(self, "targets", targets)

    @property
    def size(self) -> int:
        """How many examples there are."""
        return int(self.features.shape[0])

    @property
    def dimension(self) -> int:
        """Features times outputs."""
        return int(self.features.shape[1]) * self.outputs

    def value(self, x: F64, rows: I64) -> F64:
        """One loss an example."""
        return np.asarray(self.link.value(self._margins(x, self.features[rows]), self.targets[rows]))

    def gradient_rows(self, x: F64, rows: I64) -> sparse.csr_array:
        """`features (x) slopes`, example by example."""
        chosen, k = self.features[rows], self.outputs
        slopes = np.asarray(self.link.slopes(self._margins(x, chosen), self.targets[rows]))
        values = chosen.data[:, None] * np.repeat(slopes, np.diff(chosen.indptr), axis=0)
        ids = chosen.indices.astype(np.int64)[:, None] * k + np.arange(k)
        return sparse.csr_array(
            (values.ravel(), ids.ravel(), chosen.indptr.astype(np.int64) * k),
            shape=(rows.size, self.dimension),
        )

    def _margins(self, x: F64, features: sparse.csr_array) -> F64:
        return np.asarray(features @ x.reshape(-1, self.outputs), dtype=np.float64)


def check_start(start: ArrayLike, loss: SparseLoss) -> F64:
    """A copy of the starting point that an optimiser may move, in its own precision."""
    x = np.array(start)
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float64)
    if x.shape != (loss.dimension,):
        raise ValueError(f"start must have shape ({loss.dimension},), got {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("start must be finite, got NaN or an infinity")
    return x
