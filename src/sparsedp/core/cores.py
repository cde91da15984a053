"""How many cores there are to use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Those that this process, and so what it starts, may use: threads and processes beyond them wait for each other."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
