"""Timing on a noisy machine: cases interleaved in one process, medians over rounds, ratios reported."""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def interleaved(cases: Mapping[str, Callable[[], Any]], rounds: int, repeats: int = 1) -> dict[str, float]:
    """Median seconds of one call of each case; every round runs every case ``repeats`` times.

    Each turn begins with a call that is not timed: it brings back what the other cases drove out of the caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, case in cases.items():
                case()
                start = time.perf_counter()
                for _ in range(repeats):
                    case()
                seconds[name].append((time.perf_counter() - start) / repeats)
    finally:
        gc.enable()
    return {name: statistics.median(values) for name, values in seconds.items()}


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from batches


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print JSON with ``--json``, a table otherwise."""
    if "--json" in sys.argv:
        print(json.dumps({title: rows}, indent=2))
        return
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()])
    Console(width=160).print(table)
