"""What AdaFEST remembers of the rows whose noisy counts were large in earlier steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import positions_in
from sparsedp.core.validation import check_count


class RowMemory:
    """A level for each row that passed a threshold lately: up by 1 when it passes, down by ``share`` at every step.

    A row is trained while its level is at least ``least``: one that passes in a larger part of the steps than ``share``
    is trained after some repetitions, one that passed by chance is not. A level is at most ``most``, so a row that no
    longer passes is trained for at most ``(most - least) / share`` steps more. At zero a row is forgotten.
    With ``every`` such rows take turns: each is trained in one of ``every`` steps, which its number tells.

    Its state is a function of released rows alone, so it is released too. It holds no more rows than passed in the
    last ``most / share`` steps; a step costs what it holds and what passes.
    """

    def __init__(self, size: int, *, share: float, least: float, most: float, every: int = 1) -> None:
        self.size, self.share, self.least, self.most, self.every = size, share, least, most, every
        self.steps = 0
        self.ids: I64 = np.empty(0, dtype=np.int64)
        """The remembered rows, sorted."""
        self.levels: F64 = np.empty(0)

    def observe(self, passed: I64) -> I64:
        """Take in the (sorted) rows that passed in a step; the rows to train, sorted."""
        self.steps += 1
        self.levels -= self.share
        place = positions_in(self.ids, passed)
        known = place >= 0
        self.levels[place[known]] += 1.0
        new = passed[~known]
        where = self.ids.searchsorted(new)
        ids, levels = np.insert(self.ids, where, new), np.insert(self.levels, where, 1.0)
        alive = levels > 0.0
        self.ids, self.levels = ids[alive], np.minimum(levels[alive], self.most)
        in_turn = (self.ids + self.steps) % self.every == 0
        trained: I64 = self.ids[(self.levels >= self.least) & in_turn]
        return trained

    def state_dict(self) -> dict[str, Any]:
        """The remembered rows and their levels, as tensors and plain values."""
        return {
            "size": self.size,
            "steps": self.steps,
            "ids": torch.from_numpy(self.ids.copy()),
            "levels": torch.from_numpy(self.levels.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse; refuses the memory of other tables, and what is none."""
        if state.get("size") != self.size:
            raise ValueError(f"memory: of {state.get('size')} rows there, of {self.size} rows here")
        ids, levels = state["ids"].numpy(), state["levels"].numpy()
        in_order = ids.size == 0 or (ids[0] >= 0 and ids[-1] < self.size and bool((np.diff(ids) > 0).all()))
        if ids.shape != levels.shape or not in_order or not ((levels > 0) & (levels <= self.most)).all():
            raise ValueError(
                "memory: needs sorted rows, each with a level above zero and at most the largest"
            )
        # An earlier version counted no steps.
        self.steps = check_count("memory: steps", state.get("steps", 0), minimum=0)
        self.ids, self.levels = ids.astype(np.int64), levels.astype(np.float64)
