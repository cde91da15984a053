"""AdaFEST's memory: the rows whose noisy counts, added up over steps, stand out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts, contains
from sparsedp.core.observing import draw
from sparsedp.core.validation import check_count
from sparsedp.mechanisms import NoisySums
from sparsedp.mechanisms.histogram import check_histogram
from sparsedp.randomness import Stream

OFTEN = 3.0
"""A sum of so many times the threshold: the row is trained in every step."""


class RowMemory:
    """The rows that passed the latest review of the noisy counts' sums, and the last of the sums before.

    A review comes after 1, 2, 3, 4, 6, 9, 13 ... steps, each time half as many again, and chooses the rows whose sum is at
    least ``deviations`` standard deviations of its noise. After ``steps`` steps new sums begin, and what the old ones chose
    last is trained for half as many steps more: a row that is no longer read is trained for at most ``1.5 steps`` more.
    Rows far above the threshold are trained in every step. The others take turns: each in one of ``every`` steps, which
    its number tells.

    Guarantee: that of ``NoisySums``; released are the rows that a review chose with their sums there, and the rest is a
    function of them and of the number of the step. The state that is saved holds these alone: whoever loads it begins new
    sums, as a run must that goes on from a checkpoint for a second time.
    A review takes the time of the rows that were read or passed so far; since each comes half as many steps later, all of
    them together take that of three times the reads, if batches are alike.
    """

    def __init__(self, size: int, *, deviations: float, steps: int, every: int) -> None:
        self.size, self.deviations, self.steps, self.every = size, deviations, steps, every
        self._step = 0
        """Of the training."""
        self._begin(SparseCounts.zeros(size), np.empty(0, np.int64))

    def _begin(self, before: SparseCounts, until: I64) -> None:
        """New sums; what older ones chose stays for a while."""
        self._before, self._until = before, until
        """Rows that older sums chose, each trained while twice the number of the step is below ``_until``."""
        self._passed = SparseCounts.zeros(self.size)
        self._sums, self._summed, self._due = NoisySums(self.size, self.deviations), 0, 1
        self._std = 0.0
        """Of the noise of their first step."""

    @draw
    def observe(self, counts: SparseCounts, std: float, stream: Stream) -> I64:
        """Take in a step's counts, which get noise of ``std``; the rows to train, sorted."""
        # Sums of noise of very different size would have to be reviewed more finely.
        if self._summed >= self.steps or (self._summed and not self._std / 2 <= std <= self._std * 2):
            self._begin(*self._chosen)
        self._sums.add(counts, std, stream)
        self._step, self._summed, self._std = self._step + 1, self._summed + 1, self._std or std
        if self._summed >= self._due:
            self._passed = self._sums.review(stream)
            self._due = max(self._summed + 1, self._summed * 3 // 2)
        chosen, _ = self._chosen
        often = chosen.values >= OFTEN * self.deviations
        rows: I64 = chosen.ids[often | ((chosen.ids + self._step) % self.every == 0)]
        return rows

    @property
    def _chosen(self) -> tuple[SparseCounts, I64]:
        """The rows that may be trained, of the latest review and of older sums, and until when once the sums are old."""
        now, before = self._passed, self._before
        old = (2 * self._step < self._until) & ~contains(now.ids, before.ids)
        where = now.ids.searchsorted(before.ids[old])
        ids, values = (
            np.insert(now.ids, where, before.ids[old]),
            np.insert(now.values, where, before.values[old]),
        )
        until = np.insert(np.full(now.ids.size, 2 * self._step + self.steps), where, self._until[old])
        return SparseCounts(ids, values, self.size), until

    def take_over(self, other: RowMemory) -> None:
        """Go on with the sums of another memory of the same rows, which begins new ones: they go on once only."""
        if other.size != self.size:
            raise ValueError(f"memory: of {other.size} rows there, of {self.size} rows here")
        # Equal but for rounding, where only the noise differs.
        if not math.isclose(other.deviations, self.deviations):
            return self.load_state_dict(other.state_dict())
        chosen = other._chosen
        for name in ("_step", "_before", "_until", "_passed", "_sums", "_summed", "_due", "_std"):
            setattr(self, name, getattr(other, name))
        return other._begin(*chosen)

    def state_dict(self) -> dict[str, Any]:
        """What was released and chooses the rows of the next steps, as tensors and plain values."""
        chosen, until = self._chosen
        arrays = {"ids": chosen.ids, "values": chosen.values, "until": until}
        saved = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return {"size": self.size, "step": self._step, **saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse, with new sums; refuses the memory of other tables, and what is none."""
        if state.get("size") != self.size:
            raise ValueError(f"memory: of {state.get('size')} rows there, of {self.size} rows here")
        step = check_count("memory: step", state.get("step", -1), minimum=0)
        ids, values = _vector(state, "ids", torch.int64), _vector(state, "values", torch.float64)
        until = _vector(state, "until", torch.int64)
        try:
            rows, sums, _ = check_histogram(ids, values, max(self.size, 1))
        except ValueError as error:
            raise ValueError(f"memory: {error}") from error
        if until.shape != rows.shape or (until > 2 * step + self.steps).any():
            raise ValueError("memory: until must be one number for each row, no later than its sums allow")
        self._step = step
        self._begin(SparseCounts(rows.copy(), sums.copy(), self.size), until.copy())


def _vector(state: Mapping[str, Any], name: str, dtype: torch.dtype) -> NDArray[Any]:
    """A tensor of the state that is a vector of this type in main memory."""
    value = state.get(name)
    if isinstance(value, torch.Tensor) and (value.dtype, value.ndim, value.device.type) == (dtype, 1, "cpu"):
        return value.numpy()
    raise ValueError(f"memory: {name} must be a vector of {dtype}")
