"""Counts training steps without waiting for the disk at every step."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

# A crash loses what was reserved and not taken, so few steps are reserved at once: a thousandth of the
# run; where the disk is so slow that recording would hold up training, up to a hundredth.
_SMALLEST_PART = 1 / 1000
_LARGEST_PART = 1 / 100
# What recording may cost per step: this much time, or this share of the step's time.
_SECONDS_A_STEP = 20e-6
_PART_OF_A_STEP = 0.02


class StepReserver:
    """Called once before each step's noise is drawn; writes to disk only when its reserved steps are used up.

    A crash therefore over-counts, by at most the steps reserved and not taken: `reserve`, or by default at
    most a hundredth of the planned steps (of those taken, where there is no plan), and at least one. Closing
    returns them. Only the process that made the step_reserver may call it, so that a fork cannot use returned
    steps.
    """

    def __init__(
        self,
        key: str,
        enter: Callable[[int], tuple[int, float]],
        record_unused: Callable[[int, int], None],
        *,
        reserve: int | None,
        planned: int = 0,
    ) -> None:
        # enter(requested) reserves steps and returns (granted, seconds to disk); record_unused(taken, unused).
        self.key = key
        self.taken = 0
        self._unused = 0
        self._recorded = 0  # of the steps taken, those that the ledger has recorded as taken
        self._enter = enter
        self._record_unused = record_unused
        self._reserve = reserve
        self._planned = planned
        self._batch = reserve or self._within_limits(1)
        self._process = os.getpid()
        self._mutex = threading.Lock()
        self._closed = False
        self._last_reserved: float | None = None

    @property
    def unused(self) -> int:
        """Steps reserved that are known not to have been taken; a fork knows of none."""
        return self._unused if self._process == os.getpid() else 0

    def __call__(self) -> None:
        """Count one step; `BudgetExceeded` if it would exceed the budget, `OSError` if it is not recorded."""
        if self._process != os.getpid():
            raise RuntimeError("a step_reserver may only be called by the process that made it")
        with self._mutex:
            if self._closed:
                raise ValueError("the step_reserver is closed: its unused steps were given back")
            if not self._unused:
                self._reserve_more()
            self._unused -= 1
            self.taken += 1

    def close(self) -> None:
        """Return unused steps; further calls are refused. In a forked process, do nothing."""
        if self._process != os.getpid():
            return
        with self._mutex:
            self._closed = True
            self._return_all()

    def return_unused(self) -> bool:
        """Return unused steps for another use of the budget; later calls reserve again. False if none.

        A step_reserver that is being called at this moment is left alone: it needs its steps.
        """
        if not self.unused or not self._mutex.acquire(blocking=False):
            return False
        try:
            self._return_all()
        finally:
            self._mutex.release()
        return True

    def _return_all(self) -> None:
        unused, self._unused = self._unused, 0
        taken, self._recorded = self.taken - self._recorded, self.taken
        if taken or unused:
            self._record_unused(taken, unused)

    def _reserve_more(self) -> None:
        start, before = time.monotonic(), self._last_reserved
        self._unused, seconds = self._enter(self._batch)
        self._last_reserved = time.monotonic()
        if self._reserve is None and before is not None:
            step = (start - before) / self._batch
            self._batch = self._within_limits(seconds / max(_SECONDS_A_STEP, _PART_OF_A_STEP * step))

    def _within_limits(self, requested: float) -> int:
        steps = max(self._planned, self.taken)
        return int(max(1, steps * _SMALLEST_PART, min(requested, steps * _LARGEST_PART)))
