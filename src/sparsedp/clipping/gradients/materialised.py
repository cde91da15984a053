"""Per-example gradients that are small enough to materialise: biases, scales, and what the fallback returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from sparsedp.clipping.gradients.base import Summand
from sparsedp.clipping.gradients.vectors import Vectors, upcast
from sparsedp.core.compiled import compiled
from sparsedp.rows.units import Units


class Materialised(Summand):
    """G_i is ``values[i]``."""

    def __init__(self, values: Tensor | Vectors) -> None:
        self.vectors = values if isinstance(values, Vectors) else Vectors(values)
        self.values = self.vectors.values
        self.batch_size = self.values.shape[0]

    @override
    def squared_norms(self) -> Tensor:
        if self.values.dim() == 2:
            return self.vectors.squares
        return Vectors(self.values.reshape(self.batch_size, self.values.shape[1:].numel())).squares

    @override
    def select(self, examples: Tensor) -> Materialised:
        return Materialised(self.values[examples])

    @override
    def grouped(self, units: Units) -> Materialised:
        values = upcast(self.values)
        unit = torch.from_numpy(units.of_example).to(values.device)
        return Materialised(values.new_zeros(units.count, *values.shape[1:]).index_add_(0, unit, values))

    @override
    def instantiate(self) -> Tensor:
        return self.values

    @override
    def merge(self, others: Sequence[Materialised]) -> Materialised:
        values = self.values
        for other in others:
            values = values + other.values
        return Materialised(values)

    @override
    def dot(self, other: Summand) -> Tensor:
        return other.dot(self)

    def _add_to(self, out: Tensor, weights: Tensor) -> None:
        flat = upcast(self.values).reshape(self.batch_size, out.numel())
        if out.device.type == "cpu":
            _add_weighted(out.view(-1).numpy(), flat.contiguous().numpy(), weights.numpy())
        else:
            out.view(-1).add_(weights.double() @ flat.double())


@compiled
def _add_weighted(out: NDArray[np.float64], values: NDArray[Any], weights: NDArray[Any]) -> None:
    """Add ``sum_i weights[i] * values[i]``, in float64."""
    for i in range(weights.size):
        weight = np.float64(weights[i])
        for n in range(out.size):
            out[n] += weight * values[i, n]
