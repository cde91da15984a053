"""When a run writes its checkpoints, and which of them it resumes from."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sparsedp.core.durable import keep_previous, previous_of
from sparsedp.training.checkpoint import check_file

if TYPE_CHECKING:
    from sparsedp.runs.run_stats import RunStats
    from sparsedp.runs.trainer import Trainer

_TIME_SHARE = 0.02


class CheckpointSchedule:
    """Every so many steps, or by default as often as takes a fiftieth of the time; and in any case at the end.

    A crash loses the steps since the last checkpoint: they stay charged, and are not in the model.
    """

    def __init__(self, every: int | None, save: Callable[[], None]) -> None:
        self._every = every
        self._save = save
        self._unsaved = False
        self._due = 0.0
        """The time of the next checkpoint; the first comes after the first step."""

    def after_step(self, step: int) -> None:
        """Save if it is time to."""
        self._unsaved = True
        if step % self._every == 0 if self._every is not None else time.monotonic() >= self._due:
            self._write()

    def at_the_end(self) -> None:
        """Save what was not: evaluation and export, which follow, may fail."""
        if self._unsaved:
            self._write()

    def _write(self) -> None:
        began = time.monotonic()
        self._save()
        ended = time.monotonic()
        self._due = ended + (ended - began) / _TIME_SHARE
        self._unsaved = False


def save_checkpoint(trainer: Trainer, path: Path, run_stats: RunStats) -> None:
    """Write a checkpoint, and keep the one before it."""
    keep_previous(path)
    trainer.save(path, run_stats)


def whole_checkpoint(path: Path) -> Path:
    """``path``, or the checkpoint before it if this one is damaged: the steps between stay charged."""
    try:
        check_file(path)
    except ValueError as damaged:
        try:
            check_file(previous_of(path))
        except (ValueError, OSError):
            raise damaged from None
        warnings.warn(f"{damaged}; going on from the checkpoint before it", stacklevel=2)
        return previous_of(path)
    return path
