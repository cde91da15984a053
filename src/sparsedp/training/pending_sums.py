"""Gradients that wait for their row's turn: rows of a fixed set that are updated every few steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import torch

from sparsedp.core.arrays import F32, F64, I64
from sparsedp.core.counts import positions_in
from sparsedp.core.observing import draw
from sparsedp.selection.pace import UpdateSchedule
from sparsedp.training.noise import Noise

Rows = list[tuple[I64, F32]]
"""Per selectable table: rows, and their released gradients."""


class PendingSums:
    """The clipped sums of each row since it was last updated. Private: they have no noise until they are released.

    Guarantee: that of a step that releases every row, at the same noise; released here are fewer numbers. Proof: give
    each step's sums, which lie on the lattice, noise ``N(0, std^2)`` of their own. The step is then the Gaussian
    mechanism, whose output is kept from everybody, the model too, until the row's turn comes; what is released is a sum
    of such outputs, hence post-processing, and the model of the next step is a function of released values alone. The
    noises of n steps add up to ``N(0, n std^2)``, which is drawn at once, when the sum is released; since the sum lies on
    the lattice, rounding the noise is rounding the released sum.

    Each row remembers up to which step its sum has noise, so that an interrupted step, or a schedule that changes, can
    never release a sum with the noise of fewer steps than it holds. What is saved has noise (``state_dict``): a run that
    goes on from it twice, or a copy that is read, sees released values. A copy of the sums themselves would be noised
    twice, independently, and is refused.
    """

    def __init__(self, schedule: UpdateSchedule, dims: Sequence[int]) -> None:
        self._schedule = schedule
        self._sums = [np.zeros((rows.size, dim)) for rows, dim in zip(schedule.rows, dims, strict=True)]
        self._noised_at = [np.zeros(rows.size, dtype=np.int64) for rows in schedule.rows]
        """The step up to which each row's sum has its noise."""
        self._step = 0
        self._is_lost = False
        """A flush released the sums, and the rows were not all updated."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "pending sums are not copied or pickled, a copy would be noised a second time: use engine.save()"
        )

    def take_turns(self, touched: Mapping[int, tuple[I64, F64]], noise: Noise) -> Rows:
        """Add a step's sums (per table: touched rows and their sums), and release the rows that are due."""
        self._step += 1
        return self._turn(touched, noise)

    @draw
    def _turn(self, touched: Mapping[int, tuple[I64, F64]], noise: Noise) -> Rows:
        for table_index, (rows, sums) in touched.items():
            places = positions_in(self._schedule.rows[table_index], rows)
            self._sums[table_index][places] += noise.on_lattice(sums)
        return self._release(self._schedule.due(self._step), noise)

    @contextmanager
    def flushed(self, noise: Noise) -> Iterator[Rows]:
        """``flush``, for rows that are updated within; if that fails, the sums are of no use any more (``check``)."""
        self.check()
        self._is_lost = True
        yield self.flush(noise)
        self._is_lost = False

    def check(self) -> None:
        """Refuse to go on after a flush that failed: which rows it updated is not known."""
        if self._is_lost:
            raise RuntimeError(
                "flush: the last one failed while rows were updated, and which of them were is not known; make the engine "
                "and the model again, and resume the run from its last checkpoint"
            )

    @draw
    def flush(self, noise: Noise) -> Rows:
        """Release every row that waits; its noise is that of steps that were charged.

        A sum that has its noise already, as it was saved, waits if it is not zero; any other does by its age alone.
        """
        waits = [
            (at < self._step) | sums.any(axis=1) for at, sums in zip(self._noised_at, self._sums, strict=True)
        ]
        return self._release([np.flatnonzero(each) for each in waits], noise)

    def _release(self, due: Sequence[I64], noise: Noise) -> Rows:
        released = []
        for table_index, places in enumerate(due):
            sums = self._sums[table_index]
            values = np.empty((places.size, sums.shape[1]), dtype=np.float32)
            for steps, same in self._by_age(table_index, places):
                values[same] = noise.release_after(sums[places[same]], steps)
            sums[places] = 0.0
            self._noised_at[table_index][places] = self._step
            released.append((self._schedule.rows[table_index][places], values))
        return released

    def _by_age(self, table_index: int, places: I64) -> Iterator[tuple[int, I64]]:
        """Which of the rows have sums of how many steps without noise."""
        ages = self._step - self._noised_at[table_index][places]
        order = np.argsort(ages, kind="stable")
        steps, starts = np.unique(ages[order], return_index=True)
        yield from zip(steps.tolist(), np.split(order, starts[1:]), strict=False)

    @draw
    def _with_noise(self, noise: Noise) -> list[F64]:
        """The sums with the noise that they lack."""
        noised = []
        for table_index, sums in enumerate(self._sums):
            values = np.empty_like(sums)
            for steps, same in self._by_age(table_index, np.arange(sums.shape[0])):
                values[same] = noise.noised_after(sums[same], steps)
            noised.append(values)
        return noised

    def state_dict(self, noise: Noise | None) -> dict[str, Any]:
        """The sums, which get the noise that they lack here and in the file, as tensors and plain values.

        Without ``noise``, for a seeded run, they stay as they are: when it was saved then does not change its result.
        """
        self.check()
        if noise is not None:
            self._sums = self._with_noise(noise)
            for at in self._noised_at:
                at[:] = self._step
        return {
            "step": self._step,
            "sums": [torch.from_numpy(sums.copy()) for sums in self._sums],
            "noised_at": [torch.from_numpy(at.copy()) for at in self._noised_at],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        step, sums, noised_at = state["step"], state["sums"], state["noised_at"]
        shapes = [[tuple(each.shape) for each in saved] for saved in (sums, noised_at)]
        if shapes != [[s.shape for s in self._sums], [at.shape for at in self._noised_at]]:
            raise ValueError("pending sums: saved for another set of rows")
        if (
            type(step) is not int
            or not all(s.dtype == torch.float64 and bool(torch.isfinite(s).all()) for s in sums)
            or not all(at.dtype == torch.int64 and bool(((at >= 0) & (at <= step)).all()) for at in noised_at)
        ):
            raise ValueError("pending sums: not as a run writes them")
        self._step = step
        self._sums = [saved.numpy().copy() for saved in sums]
        self._noised_at = [saved.numpy().copy() for saved in noised_at]
