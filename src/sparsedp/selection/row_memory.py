"""AdaFEST's memory: the rows whose noisy counts, added up over steps, stand out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.observing import draw
from sparsedp.core.validation import check_count
from sparsedp.mechanisms import NoisySums
from sparsedp.randomness import Stream

OFTEN = 3.0
"""A sum of so many times the threshold: the row is trained in every step."""


class RowMemory:
    """The rows that passed the latest review of the noisy counts' sums, and the last of the sums before.

    A review comes after 1, 2, 3, 4, 6, 9, 13 ... steps, each time half as many again, and chooses the rows whose sum is at
    least ``deviations`` standard deviations of its noise. After ``steps`` steps new sums begin, and what the old ones chose
    last is trained until they have half as many steps: a row that is no longer read is trained for at most
    ``1.5 steps`` more.
    Rows far above the threshold are trained in every step. The others take turns: each in one of ``every`` steps, which
    its number tells.

    Guarantee: that of ``NoisySums``; released are the rows that a review chose, and the rest is a function of them and of
    the number of the step. A review takes the time of the rows that were read or passed so far; since each comes half as
    many steps later, all of them together take that of three times the reads, if batches are alike.
    """

    def __init__(self, size: int, *, deviations: float, steps: int, every: int) -> None:
        self.size, self.deviations, self.steps, self.every = size, deviations, steps, every
        self._step = 0
        """Of the training."""
        self._passed = self._before = SparseCounts.zeros(size)
        self._begin(0.0)

    def _begin(self, std: float) -> None:
        """New sums; what the old ones chose stays for a while."""
        self._before, self._passed = self._passed, SparseCounts.zeros(self.size)
        self._sums, self._summed, self._due, self._std = NoisySums(self.size, self.deviations), 0, 1, std

    @draw
    def observe(self, counts: SparseCounts, std: float, stream: Stream) -> I64:
        """Take in a step's counts, which get noise of ``std``; the rows to train, sorted."""
        # Sums of noise of very different size would have to be reviewed more finely.
        if self._summed == self.steps or not self._std / 2 <= std <= self._std * 2:
            self._begin(std)
        self._step, self._summed = self._step + 1, self._summed + 1
        self._sums.add(counts, std, stream)
        if self._summed == self._due:
            self._passed = self._sums.review(stream)
            self._due = _next_review(self._summed)
        rows = self._in_turn(self._passed)
        if 2 * self._summed < self.steps:
            rows = np.union1d(rows, self._in_turn(self._before))
        return rows

    def _in_turn(self, passed: SparseCounts) -> I64:
        often = passed.values >= OFTEN * self.deviations
        rows: I64 = passed.ids[often | ((passed.ids + self._step) % self.every == 0)]
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and plain values. Private: the sums tell which rows were read."""
        return {
            "size": self.size,
            "step": self._step,
            "summed": self._summed,
            "std": self._std,
            "passed": _saved(self._passed),
            "before": _saved(self._before),
            "sums": self._sums.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse; refuses the memory of other tables, and what is none."""
        if state.get("size") != self.size:
            raise ValueError(f"memory: of {state.get('size')} rows there, of {self.size} rows here")
        step = check_count("memory: step", state["step"], minimum=0)
        summed = check_count("memory: summed", state["summed"], minimum=0)
        passed, before = (_loaded(state[name], self.size) for name in ("passed", "before"))
        sums = NoisySums(self.size, self.deviations)
        sums.load_state_dict(state["sums"])
        due = 1
        while due <= summed:
            due = _next_review(due)
        self._step, self._summed, self._due, self._std = step, summed, due, float(state["std"])
        self._passed, self._before, self._sums = passed, before, sums


def _next_review(step: int) -> int:
    return max(step + 1, step * 3 // 2)


def _saved(passed: SparseCounts) -> dict[str, Any]:
    return {"ids": torch.from_numpy(passed.ids.copy()), "values": torch.from_numpy(passed.values.copy())}


def _loaded(state: Mapping[str, Any], size: int) -> SparseCounts:
    ids, values = state["ids"].numpy().astype(np.int64), state["values"].numpy().astype(np.float64)
    in_order = ids.size == 0 or (ids[0] >= 0 and ids[-1] < size and bool((np.diff(ids) > 0).all()))
    if ids.shape != values.shape or not in_order or not np.isfinite(values).all():
        raise ValueError("memory: needs sorted rows, each with its sum")
    return SparseCounts(ids, values, size)
