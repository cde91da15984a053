"""Counting training steps without waiting for the disk at each of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

# Recording may cost a step this much time, or this part of its own. Where a slow disk takes longer, more
# steps are reserved at once; not beyond a limit, because a crash loses what was reserved.
_SECONDS_A_STEP = 20e-6
_PART_OF_A_STEP = 0.004
_RESERVE = 64
_LARGEST_RESERVE = 1024


class Stepper:
    """Called once before each step's noise is drawn; writes to disk only when its reserved steps are used up.

    A crash therefore over-counts, by at most the steps reserved and not taken. Closing gives them back. Only
    the process that made the stepper may call it, so that steps given back cannot be in use in a fork of it.
    """

    def __init__(
        self,
        key: str,
        enter: Callable[[int], tuple[int, float]],
        settle: Callable[[int, int], None],
        *,
        reserve: int | None,
    ) -> None:
        # enter(wanted) reserves steps: how many were granted, and the seconds to disk. settle(taken, unused).
        self.key = key
        self.taken = 0
        self._unused = 0
        self._settled = 0  # of the steps taken, those that are final in the ledger
        self._enter = enter
        self._settle = settle
        self._reserve = reserve
        self._batch = reserve or _RESERVE
        self._process = os.getpid()
        self._mutex = threading.Lock()
        self._closed = False
        self._last_reserved = time.monotonic()

    @property
    def unused(self) -> int:
        """Steps reserved that are known not to have been taken; a fork knows of none."""
        return self._unused if self._process == os.getpid() else 0

    def __call__(self) -> None:
        """Count one step; `BudgetExceeded` if it would pass the budget, `OSError` if it is not recorded."""
        if self._process != os.getpid():
            raise RuntimeError("a stepper may only be called by the process that made it")
        with self._mutex:
            if self._closed:
                raise ValueError("the stepper is closed: its unused steps were given back")
            if not self._unused:
                self._reserve_more()
            self._unused -= 1
            self.taken += 1

    def close(self) -> None:
        """Give unused steps back; further calls are refused. In a forked process, do nothing."""
        if self._process != os.getpid():
            return
        with self._mutex:
            self._closed = True
            self._settle_all()

    def give_back(self) -> bool:
        """Give unused steps back for another use of the budget; later calls reserve anew. False if none.

        A stepper that is being called at this moment is left alone: it needs what it has.
        """
        if not self.unused or not self._mutex.acquire(blocking=False):
            return False
        try:
            self._settle_all()
        finally:
            self._mutex.release()
        return True

    def _settle_all(self) -> None:
        unused, self._unused = self._unused, 0
        taken, self._settled = self.taken - self._settled, self.taken
        if taken or unused:
            self._settle(taken, unused)

    def _reserve_more(self) -> None:
        step = (time.monotonic() - self._last_reserved) / self._batch
        self._unused, seconds = self._enter(self._batch)
        self._last_reserved = time.monotonic()
        if self._reserve is None:
            needed = seconds / max(_SECONDS_A_STEP, _PART_OF_A_STEP * step)
            self._batch = int(min(max(needed, _RESERVE), _LARGEST_RESERVE))
