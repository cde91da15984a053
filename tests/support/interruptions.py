"""Runs that are interrupted."""

from __future__ import annotations

from collections.abc import Callable

from sparsedp.runs.training import Progress


def stop_at(step: int) -> Callable[[Progress], None]:
    """Interrupt a run at this report of its progress, counted from 1."""
    calls = [0]

    def on_progress(progress: Progress) -> None:
        calls[0] += 1
        if calls[0] == step:
            raise KeyboardInterrupt

    return on_progress
