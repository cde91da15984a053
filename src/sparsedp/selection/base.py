"""What a selection rule is: which rows a step may touch, and what that choice costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsedp.accounting.events import DpEvent, GaussianDpEvent
from sparsedp.mechanisms import batch_clip_sensitivity
from sparsedp.randomness import Stream
from sparsedp.rows import RowCounts, RowSpace, TableShape

Ints = NDArray[np.int64]
CountRows = Callable[[Any, float], Mapping[str, RowCounts]]
"""(a loader, contribution norm) -> the clipped histogram of each table's rows over the loader's examples."""


LooksAt = Literal["nothing", "ids", "gradients"]
"""What of a batch a rule needs to choose its rows: which pieces of a batch can be forgotten depends on it."""


def free() -> None:
    """Nobody keeps an account."""


class Batch(Protocol):
    """What a rule may ask of a batch. Everything it answers is private."""

    @property
    def space(self) -> RowSpace:
        """The tables."""

    def contributions(self, norm: float, domain: Ints | None = None) -> RowCounts:
        """``sum_i v_i min(1, norm / ||v_i||)`` over selectable rows (those of ``domain``)."""

    def scores(self) -> RowCounts:
        """The norm of each touched selectable row in the mean clipped gradient."""


class Selected(NamedTuple):
    """The rows that get gradient and noise: the output of a DP mechanism (or of none, where public)."""

    rows: Ints
    """Sorted joint numbers of selectable rows; tables that are always on are selected as a whole."""
    coordinates: Ints | None = None
    """Sorted numbers of single coordinates within the selected rows' tables; None: whole rows."""


@dataclass(frozen=True)
class Rule(ABC):
    """A selection with its noise settled: what one step does. Fields are public."""

    looks_at: ClassVar[LooksAt] = "gradients"
    space: RowSpace
    noise_multiplier: float
    """The gradient's noise over the gradient's sensitivity (sigma2)."""
    clip: float
    batch: float
    """The public divisor B."""
    batch_clip: float | None = None
    """Bound on the norm of the *mean* gradient (WIDE's second clipping), or None."""

    @property
    def sensitivity(self) -> float:
        """How far one example moves the clipped sum, add-or-remove-one."""
        if self.batch_clip is None:
            return self.clip
        return self.batch * batch_clip_sensitivity(
            example_clip=self.clip, batch_clip=self.batch_clip, batch=self.batch
        )

    @abstractmethod
    def select(self, batch: Batch, stream: Stream) -> Selected:
        """Choose the rows of this step; the choice alone is released."""


class Selection(ABC):
    """A selection as the user states it, before tables and noise are known. Frozen; fields are public."""

    batch_clip: float | None = None

    def resolve(
        self,
        tables: Sequence[TableShape],
        count_rows: CountRows,
        stream: Stream,
        pay: Callable[[], None] = free,
    ) -> Selection:
        """Make the choices that are made once before training (they cost ``one_off_events``).

        ``pay`` is called when everything is counted and before noise is drawn.
        """
        return self

    def one_off_events(self) -> tuple[DpEvent, ...]:
        """What is spent once, before the first step."""
        return ()

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """What one step spends on the examples in its batch (the engine adds the sampling)."""
        return GaussianDpEvent(noise_multiplier)

    @abstractmethod
    def divide(self, tables: Sequence[TableShape]) -> RowSpace:
        """Which tables the rule chooses in, and which are always on."""

    @abstractmethod
    def rule(self, space: RowSpace, *, noise_multiplier: float, clip: float, batch: float) -> Rule:
        """The rule of a step at this effective noise multiplier."""


def check_always_on(always_on_rows: int) -> None:
    """Refuse a negative size."""
    if always_on_rows < 0:
        raise ValueError(f"always_on_rows must be zero or more, got {always_on_rows}")
