"""A process that ends with the one that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import threading
import time


def end_with_starter(after_seconds: float = 0.0) -> None:
    """Send this process SIGTERM so many seconds after its standard input has ended.

    Its starter holds the other end of a pipe and writes nothing. The system closes that end when the starter ends, also by
    a signal that cannot be caught. Processes that this one starts inherit the pipe, and can watch it too.
    """
    threading.Thread(target=_watch, args=(after_seconds,), daemon=True).start()


def _watch(after_seconds: float) -> None:
    while os.read(0, 1):
        pass
    time.sleep(after_seconds)
    os.kill(os.getpid(), signal.SIGTERM)
