"""Which examples of a batch belong together: all rows of a user are one privacy unit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparsedp.core.arrays import F64, I64


@dataclass(frozen=True)
class Units:
    """The privacy units of a piece of a batch, by the examples in it.

    Per-example gradients of a unit's examples are summed before anything is clipped or counted (``Captured.grouped``);
    with ``mean`` the sum is divided by the unit's own number of examples in the piece.
    """

    of_example: I64
    """The unit of each example: 0, 1, 2, ... in ascending order, without gaps."""
    most: int
    """No unit has more examples than this; public."""
    mean: bool = False

    def __post_init__(self) -> None:
        if self.of_example.size and self.sizes.max() > self.most:
            raise ValueError(
                f"units: one has {self.sizes.max()} examples, where at most {self.most} are allowed"
            )

    @property
    def count(self) -> int:
        """How many units there are."""
        return int(self.of_example[-1]) + 1 if self.of_example.size else 0

    @cached_property
    def sizes(self) -> I64:
        """How many examples each unit has."""
        return np.bincount(self.of_example, minlength=self.count)

    @cached_property
    def slots(self) -> I64:
        """The number of each example within its unit, from 0."""
        return np.arange(self.of_example.size) - (np.cumsum(self.sizes) - self.sizes)[self.of_example]

    def scales(self, scale: float) -> F64:
        """What a unit's recorded gradient is multiplied by, where that of an example is multiplied by ``scale``."""
        return scale / self.sizes if self.mean else np.full(self.count, scale)
