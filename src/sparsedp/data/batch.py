"""Examples as arrays: a batch in memory, or all rows of a folder mapped from disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.arrays import I64

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class MultiHot:
    """The ids of a multi-hot feature: those of row i are `values[offsets[i]:offsets[i + 1]]`."""

    values: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def take(self, rows: I64) -> MultiHot:
        """Return a copy of the chosen rows, in their order."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        offsets = np.append(0, np.cumsum(lengths))
        positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return MultiHot(self.values[positions], offsets)


@dataclass(frozen=True)
class Batch:
    """Examples: numeric (n, p) float32, ids (n, q) int32, label (n,) float32, time and user (n,) int64 or None."""

    numeric: NDArray[np.float32]
    ids: NDArray[np.int32]
    label: NDArray[np.float32]
    time: NDArray[np.int64] | None = None
    multi_hot: tuple[MultiHot, ...] = ()
    user: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: I64) -> Batch:
        """Return a copy of the chosen rows, in their order."""
        return Batch(
            self.numeric[rows],
            self.ids[rows],
            self.label[rows],
            None if self.time is None else self.time[rows],
            tuple(bags.take(rows) for bags in self.multi_hot),
            None if self.user is None else self.user[rows],
        )

    def between(self, start: int, stop: int) -> Batch:
        """Return rows that follow one another, without a copy but of the multi-hot features."""
        rows = slice(start, min(stop, len(self)))
        return Batch(
            self.numeric[rows],
            self.ids[rows],
            self.label[rows],
            None if self.time is None else self.time[rows],
            tuple(bags.take(np.arange(start, rows.stop)) for bags in self.multi_hot),
            None if self.user is None else self.user[rows],
        )

    def tensors(self) -> tuple[tuple[Any, ...], torch.Tensor]:
        """Return ((numeric, ids, (values, offsets) ...), label) with 64-bit ids, as the models take them.

        `offsets` is where each bag begins, as torch's EmbeddingBag wants it.
        """
        import torch

        bags = [
            (torch.from_numpy(bag.values.astype(np.int64)), torch.from_numpy(bag.offsets[:-1].copy()))
            for bag in self.multi_hot
        ]
        numeric, ids = torch.from_numpy(self.numeric), torch.from_numpy(self.ids.astype(np.int64))
        return (numeric, ids, *bags), torch.from_numpy(self.label)

    @staticmethod
    def concatenate(batches: list[Batch]) -> Batch:
        """Put batches without multi-hot features one after another."""
        times = [batch.time for batch in batches if batch.time is not None]
        return Batch(
            np.concatenate([batch.numeric for batch in batches]),
            np.concatenate([batch.ids for batch in batches]),
            np.concatenate([batch.label for batch in batches]),
            np.concatenate(times) if times else None,
        )
