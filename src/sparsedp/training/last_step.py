"""What a step says about itself: what it released, and what may be looked at where data is not private."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class LastStep(NamedTuple):
    """What a step released about itself: outputs of DP mechanisms and public sizes."""

    step: int
    rows: int
    """Embedding rows that got noise."""
    gradient_size: int
    """Embedding coordinates that got noise."""
    dense_size: int
    """Coordinates of the dense parameters, which always get noise."""
    table_coordinates: int
    """What dense DP-SGD would noise in the tables."""
    rows_per_table: Mapping[str, int]

    @property
    def reduction(self) -> float:
        """How many times smaller the embedding gradient is than dense DP-SGD's."""
        return self.table_coordinates / max(self.gradient_size, 1)


@dataclass(frozen=True)
class Diagnostics:
    """NOT PRIVATE: computed from the examples without noise. For debugging on data that may be looked at."""

    batch_size: int
    clipped_fraction: float
    non_finite_examples: int
