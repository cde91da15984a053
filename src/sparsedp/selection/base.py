"""The interface of selections: which rows a step may touch, and what that choice costs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch

from sparsedp.accounting.event_json import event_from_json, event_key, event_to_json
from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.mechanisms import batch_clip_sensitivity, gaussian_event
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace
from sparsedp.selection.pace import UpdateSchedule

CountRows = Callable[[Any, float], Mapping[str, SparseCounts]]
"""(a loader, contribution norm) -> the clipped histogram of each table's rows over the loader's examples."""


LooksAt = Literal["nothing", "ids", "gradients"]
"""What a rule needs of a batch to choose its rows; it decides whether the pieces of a batch must be stored."""


def free() -> None:
    """Charge nothing."""


class Batch(Protocol):
    """What a rule may read of a batch. All results are private: they have no noise."""

    @property
    def space(self) -> RowSpace:
        """The tables."""

    def contributions(self, norm: float, domain: I64 | None = None) -> SparseCounts:
        """``sum_i v_i min(1, norm / ||v_i||)`` over selectable rows (those of ``domain``)."""

    def scores(self) -> SparseCounts:
        """The norm of each touched selectable row in the mean clipped gradient."""

    def coordinate_scores(self) -> SparseCounts:
        """The absolute value of each coordinate of those rows in the mean clipped gradient."""


class Selected(NamedTuple):
    """The rows that get gradient and noise: the output of a DP mechanism, or public."""

    rows: I64
    """Sorted global row ids of selectable rows; always-on tables are selected entirely."""
    coordinates: I64 | None = None
    """Sorted coordinate ids within the selected rows' tables; None: all coordinates of the rows."""


@dataclass(frozen=True)
class Rule(ABC):
    """A selection with its noise and tables fixed: what one step does. Fields are public."""

    looks_at: ClassVar[LooksAt] = "gradients"
    space: RowSpace
    gradient_noise_multiplier: float
    """The gradient's noise over the gradient's sensitivity (sigma2)."""
    max_grad_norm: float
    expected_batch_size: float
    """The public divisor B."""
    batch_clip: float | None = None
    """Bound on the norm of the *mean* gradient (WIDE's second clipping), or None."""

    @property
    def sensitivity(self) -> float:
        """How far one example moves the clipped sum, add-or-remove-one."""
        if self.batch_clip is None:
            return self.max_grad_norm
        return self.expected_batch_size * batch_clip_sensitivity(
            example_clip=self.max_grad_norm, batch_clip=self.batch_clip, batch=self.expected_batch_size
        )

    @abstractmethod
    def select(self, batch: Batch, stream: Stream) -> Selected:
        """Choose the rows of this step; the choice alone is released."""

    @property
    def schedule(self) -> UpdateSchedule | None:
        """When each selected row is updated, where every step selects the same rows and they take turns."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What the rule keeps from step to step, as tensors and plain values: a function of what was released."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse."""
        if state:
            raise ValueError(f"rule: this selection keeps nothing from step to step, got {sorted(state)}")

    def take_over(self, other: Rule) -> None:
        """Go on where a rule of the same kind ends, in the same process."""
        self.load_state_dict(other.state_dict())


class Selection(ABC):
    """A selection as the user states it, before tables and noise are known. Frozen; fields are public.

    A selection that is a dataclass is saved, loaded and compared by its fields.
    """

    batch_clip: float | None = None
    lazy: bool = False
    """Noise of untouched rows is pending until they are read; only where every step trains the same rows."""
    _kinds: ClassVar[dict[str, type[Selection]]] = {}

    def __init_subclass__(cls) -> None:
        Selection._kinds[_kind(cls)] = cls

    def state_dict(self) -> dict[str, Any]:
        """The kind of selection and all its parameters, as plain values and tensors."""
        return {
            "kind": _kind(type(self)),
            **{name: _plain(name, value) for name, value in self.parameters().items()},
        }

    @staticmethod
    def from_state_dict(state: Mapping[str, Any]) -> Selection:
        """The reverse."""
        kind = Selection._kinds.get(state["kind"])
        if kind is None:
            raise ValueError(
                f"selection of the unknown kind {state['kind']!r}: import the module that has it"
            )
        return kind.from_parameters(
            {name: _restored(value) for name, value in state.items() if name != "kind"}
        )

    def parameters(self) -> dict[str, Any]:
        """Every argument that the selection was made with."""
        if not is_dataclass(self):
            raise ValueError(
                f"selection {type(self).__name__} cannot be saved: make it a dataclass, or give it "
                "`parameters` and `from_parameters`"
            )
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Selection:
        """The selection with these parameters."""
        return cls(**parameters)

    @property
    def is_private(self) -> bool:
        """False where a step has no privacy guarantee: no epsilon holds, for any noise."""
        return '"NonPrivateDpEvent"' not in event_key(self.step_event(1.0))

    def resolve(
        self,
        tables: Sequence[TableShape],
        count_rows: CountRows,
        stream: Stream,
        charge: Callable[[], None] = free,
    ) -> Selection:
        """Make the one-off choices before training (they cost ``one_off_events``).

        ``charge`` is called after counting and before noise is drawn.
        """
        return self

    def stand_in(self, tables: Sequence[TableShape]) -> Selection | None:
        """A selection like the one that ``resolve`` makes, but chosen without data; None: there is none.

        What public numbers alone decide is checked with it before anything is paid for.
        """
        return self if type(self).resolve is Selection.resolve else None

    @property
    def takes_turns(self) -> bool:
        """Are there rows that are not updated in every step, but by what they have gathered since their last update?"""
        return False

    def one_off_events(self) -> tuple[DpEvent, ...]:
        """What is spent once, before the first step."""
        return ()

    def step_event(self, noise_multiplier: float) -> DpEvent:
        """What one step spends on the examples in its batch (the engine adds the sampling)."""
        return gaussian_event(std=noise_multiplier, sensitivity=1.0)

    @property
    def sorted_rows(self) -> Mapping[str, I64]:
        """Where every step trains the same rows: those of each table, sorted; all rows of a table without an entry."""
        return {}

    @abstractmethod
    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        """Which tables are selectable, and which are always on."""

    @abstractmethod
    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> Rule:
        """The rule of a step at this effective noise multiplier."""


def default_contribution_norm(space: RowSpace) -> float:
    """The norm of an example's contributions with one value in each table chosen in: nothing of it is clipped."""
    return math.sqrt(max(len(space.selectable), 1))


def check_always_on(always_on_rows: int) -> None:
    """Refuse a negative size."""
    if always_on_rows < 0:
        raise ValueError(f"always_on_rows must be zero or more, got {always_on_rows}")


def _kind(cls: type[Selection]) -> str:
    is_builtin = cls.__module__.startswith("sparsedp.")
    return cls.__qualname__ if is_builtin else f"{cls.__module__}.{cls.__qualname__}"


def _plain(name: str, value: Any) -> Any:
    """A parameter as a value that a checkpoint can hold."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Selection):
        return value.state_dict()
    if isinstance(value, DpEvent):
        return {"event": event_to_json(value)}
    if isinstance(value, Mapping):
        return {str(key): torch.as_tensor(np.asarray(ids)) for key, ids in value.items()}
    raise ValueError(f"selection: parameter {name!r} cannot be saved: {type(value).__name__}")


def _restored(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "kind" in value:
        return Selection.from_state_dict(value)
    return event_from_json(value["event"]) if set(value) == {"event"} else value
