"""Losses for optimisers to be tried on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse


@dataclass
class FixedGradients:
    """Linear losses, f(x, z_i) = <g_i, x>: gradients that do not depend on x, and which of them were asked for."""

    rows: sparse.csr_array
    asked: list[np.ndarray] = field(default_factory=list)

    @property
    def size(self) -> int:
        return int(self.rows.shape[0])

    @property
    def dimension(self) -> int:
        return int(self.rows.shape[1])

    def value(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.rows[rows] @ x)

    def gradient_rows(self, x: np.ndarray, rows: np.ndarray) -> sparse.csr_array:
        self.asked.append(rows)
        return self.rows[rows]
