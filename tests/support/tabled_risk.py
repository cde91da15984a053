"""A risk whose values are read from a table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse


@dataclass
class Table:
    """Losses given outright: f(x, z_i) = values[i, argmax x]; gradients are rows of their own."""

    values: np.ndarray
    gradients: sparse.csr_array

    @property
    def size(self) -> int:
        return len(self.values)

    @property
    def dimension(self) -> int:
        return int(self.values.shape[1])

    def value(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return self.values[rows, int(np.argmax(x))]

    def gradient_rows(self, x: np.ndarray, rows: np.ndarray) -> sparse.csr_array:
        return self.gradients[rows]
