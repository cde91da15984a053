"""A run's curves for TensorBoard, where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sparsedp.core.extras import MissingExtra, require


class Curves(Protocol):
    """Receives the values of a run."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """A value after a step."""
        ...


class NoCurves:
    """Draws nothing."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Nothing."""


@contextmanager
def curves(path: Path) -> Iterator[Curves]:
    """Curves in the folder ``path``; none, and a warning, without TensorBoard: ``metrics.jsonl`` has the values."""
    try:
        require("tensorboard")
    except MissingExtra as missing:
        warnings.warn(f"no curves for TensorBoard: {missing}", stacklevel=3)
        yield NoCurves()
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(path)) as writer:
        yield writer
