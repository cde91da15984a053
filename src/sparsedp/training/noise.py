"""The noise of a step: the Gaussian mechanism on its sums, on a public lattice."""

from __future__ import annotations

import math

import numpy as np
import torch

from sparsedp.core.arrays import F32, F64, I64
from sparsedp.core.observing import draw
from sparsedp.randomness import NoiseSource, lattice_of, release_on_lattice, round_gaussian
from sparsedp.randomness.rounding import LARGEST_SCALE
from sparsedp.selection import Rule

MOST_STEPS = 2**24
"""Of which one sum may hold the gradients, and the noise."""


def step_lattice(rule: Rule, coordinates: int) -> float:
    """The lattice of a step's sums, from public numbers only (0: no noise); refuses noise beyond its range."""
    std = rule.gradient_noise_multiplier * rule.sensitivity
    if std == 0:
        return 0.0
    return lattice_of(std=std, sensitivity=rule.sensitivity, coordinates=max(coordinates, 1))


class Noise:
    """The Gaussian mechanism on a step's sums, on a lattice that depends on public numbers only."""

    def __init__(self, rule: Rule, coordinates: int, source: NoiseSource) -> None:
        self.std = rule.gradient_noise_multiplier * rule.sensitivity
        self.divisor = rule.expected_batch_size
        self._stream = source.noise
        self.lattice = step_lattice(rule, coordinates)

    @draw
    def release(self, sums: F64) -> F32:
        """``(sums + noise) / B``."""
        if self.std == 0:
            return (sums / self.divisor).astype(np.float32)
        out = np.empty(sums.size, dtype=np.float32)
        self._fill(out, sums)
        return out

    @draw
    def release_rows(self, rows: I64, sums: F64) -> F32:
        """``(sums + noise) / B`` for these rows; the noise of all others is pending."""
        return self.release(sums.ravel()).reshape(sums.shape)

    @draw
    def release_table(self, rows: int, dim: int, touched: I64, sums: F64) -> F32:
        """All rows of a table: ``sums`` plus noise for the ``touched`` ones, noise alone for the others."""
        values = np.zeros((rows, dim), dtype=np.float32)
        if self.std > 0:
            self._fill(values.reshape(-1), None)
        if touched.size:  # drawn again, with their sums
            values[touched] = self.release(sums.ravel()).reshape(sums.shape)
        return values

    def release_after(self, sums: F64, steps: int) -> F32:
        """``(sums + noise) / B`` for sums over so many steps, of which each has noise of its own (none: as they are)."""
        return (self.noised_after(sums, steps) / self.divisor).astype(np.float32)

    def noised_after(self, sums: F64, steps: int) -> F64:
        """``sums + noise`` for sums over so many steps, on the lattice."""
        if self.std == 0 or steps == 0:
            return sums.copy()
        std = math.sqrt(steps) * self.std
        cells = round_gaussian(sums.ravel(), std=std, lattice=self.lattice, stream=self._stream)
        return np.multiply(cells, self.lattice, dtype=np.float64).reshape(sums.shape)

    def on_lattice(self, sums: F64) -> F64:
        """The sums, rounded to the lattice: what the noise is added to."""
        return np.rint(sums / self.lattice) * self.lattice if self.lattice else sums

    def check_steps(self) -> None:
        """Refuse noise that, added up over many steps, would not fit on the lattice."""
        if self.std * MOST_STEPS**0.5 > LARGEST_SCALE * self.lattice:
            raise ValueError(
                f"update_every: noise of {self.std:.3g} a step is too much to be added up over steps; ask for less noise"
            )

    def _fill(self, out: F32, sums: F64 | None) -> None:
        release_on_lattice(
            out,
            sums,
            lattice=self.lattice,
            std=self.std,
            divisor=self.divisor,
            stream=self._stream,
            threads=torch.get_num_threads(),
        )
