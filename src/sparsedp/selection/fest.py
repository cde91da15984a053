"""DP-FEST: choose the most frequent rows once, before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import F64, I64
from sparsedp.core.defaults import DEFAULT_ALWAYS_ON_ROWS, DEFAULT_MU
from sparsedp.core.tables import TableShape
from sparsedp.core.validation import LARGEST_COUNT, check_count
from sparsedp.mechanisms import noisy_histogram, top_k_gaussian, top_k_gaussian_event
from sparsedp.mechanisms.noisy_histogram import expected_counts
from sparsedp.randomness import Stream
from sparsedp.rows import RowSpace, partition_tables
from sparsedp.selection.base import (
    Batch,
    CountRows,
    LooksAt,
    Rule,
    Selected,
    Selection,
    check_always_on,
    default_contribution_norm,
    free,
)
from sparsedp.selection.pace import UpdateSchedule, periods_by_count
from sparsedp.selection.table_counts import TableCounts, check_tables, checked_counts, row_ids

LEAST_COUNT, LEAST_SHARE = 0.1, 0.05
"""Rows that take turns: a row that fewer examples are expected to read, or a smaller part of the mean of its table, is not
trained."""


@dataclass(frozen=True)
class FEST(Selection):
    """Frequency-filtered training on a fixed set of rows.

    Guarantee: add-or-remove-one example; given the rows, the masked and clipped sum moves by at most
    ``max_grad_norm``; event per step ``PoissonSampled(q, Gaussian(sigma))``, and once ``event`` for how the rows
    were chosen (None: they are public; else the price for the run's unit, example or user). Released: the chosen
    rows and every step's gradient on them.
    Proof: the rows are a constant during training, so each step is DP-SGD on a smaller model.

    ``rows`` names the rows per table; a table that it does not name must be small (at most
    ``always_on_rows`` rows) and is then always on.

    With ``lazy=True`` a chosen row that no example of a step touches receives the step's noise only before it is
    next read or released: a step costs what its batch touches, however large the set. For plain SGD the final
    model has the same distribution (to rounding, see ``LazyTable``) and the same events, but only the *final model* may be
    released: which chosen rows of an intermediate table have their noise already shows which were read. Proof: that
    of lazy DP-SGD, on the smaller model; rows outside the set get neither gradient nor noise.

    With ``update_every`` rows take turns: a chosen row is updated only every so many steps (one number, or one for each
    of ``rows``), by the sum of its gradients since its last update, with the noise of all of them. So a step releases a
    part of the chosen rows, and the model learns from every step all the same. Same events; everything that is released
    may be seen after every step; any optimiser. Proof: see ``PendingSums``. ``engine.flush()`` updates the rows that wait
    at the end of a run.
    """

    rows: Mapping[str, ArrayLike]
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS
    event: DpEvent | None = None
    lazy: bool = False
    update_every: int | Mapping[str, ArrayLike] = 1
    _sorted: dict[str, I64] = field(init=False, repr=False, compare=False)
    _periods: dict[str, I64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_always_on(self.always_on_rows)
        object.__setattr__(self, "_sorted", {name: row_ids(name, ids) for name, ids in self.rows.items()})
        object.__setattr__(self, "_periods", self._checked_periods())
        if self.lazy and self.takes_turns:
            raise ValueError("update_every: rows that take turns have no lazy noise; leave out lazy=True")

    def _checked_periods(self) -> dict[str, I64]:
        """Steps between two updates of each row of each table, in the order of ``sorted_rows``."""
        every = self.update_every
        if not isinstance(every, Mapping):
            period = check_count("update_every", every)
            object.__setattr__(self, "update_every", period)
            return {name: np.full(ids.size, period) for name, ids in self._sorted.items()}
        if every.keys() != self.rows.keys():
            raise ValueError("update_every: must name the tables of rows")
        periods = {}
        for name, ids in self.rows.items():
            try:
                given = np.asarray(every[name])
            except ValueError as error:
                raise ValueError(f"update_every: table {name!r} has no plain list of numbers") from error
            order = np.argsort(np.asarray(ids, dtype=np.int64).reshape(-1), kind="stable")
            if given.shape != (self._sorted[name].size,) or order.size != given.size:
                raise ValueError(f"update_every: table {name!r} must have one for each of its distinct rows")
            whole = np.issubdtype(given.dtype, np.integer)
            if given.size and not (whole and 1 <= int(given.min()) <= int(given.max()) <= LARGEST_COUNT):
                raise ValueError(f"update_every: table {name!r} must have whole numbers of at least 1")
            periods[name] = given.astype(np.int64)[order]
        return periods

    @property
    def takes_turns(self) -> bool:
        """Has a row a period of more than one step?"""
        return any(bool((periods > 1).any()) for periods in self._periods.values())

    def parameters(self) -> dict[str, Any]:
        """The arguments, with the rows sorted."""
        every = self._periods if isinstance(self.update_every, Mapping) else self.update_every
        return {**super().parameters(), "rows": self._sorted, "update_every": every}

    @classmethod
    def from_public_counts(
        cls,
        counts: TableCounts,
        k: int,
        *,
        always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS,
        lazy: bool = False,
    ) -> FEST:
        """The ``k`` most frequent rows over all tables by public counts: no privacy cost."""
        k = check_count("k", k)
        sparse = {name: checked_counts(name, table_counts) for name, table_counts in counts.items()}
        total = np.concatenate([table.values for table in sparse.values()]) if sparse else np.empty(0)
        table_of = np.repeat(np.arange(len(sparse)), [table.ids.size for table in sparse.values()])
        ids = np.concatenate([table.ids for table in sparse.values()]) if sparse else np.empty(0, np.int64)
        top = np.argsort(-total, kind="stable")[:k]
        rows = {name: ids[top[table_of[top] == n]] for n, name in enumerate(sparse)}
        return cls(rows, always_on_rows, lazy=lazy)

    @classmethod
    def private_top_k(
        cls,
        loader_or_counts: Any,
        k: int,
        mu: float = DEFAULT_MU,
        *,
        contribution_norm: float | None = None,
        always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS,
        lazy: bool = False,
        update_every: int | None = None,
    ) -> PrivateTopK:
        """The ``k`` most frequent rows over all tables of the private data; costs one Gaussian event.

        With ``update_every`` more rows are trained than ``k``, which take turns: about ``k`` of them in a step.
        """
        return PrivateTopK(loader_or_counts, k, mu, contribution_norm, always_on_rows, lazy, update_every)

    @property
    def sorted_rows(self) -> Mapping[str, I64]:
        """The chosen rows per table, sorted and distinct."""
        return self._sorted

    def one_off_events(self) -> tuple[DpEvent, ...]:
        """What the choice of the rows cost."""
        return () if self.event is None else (self.event,)

    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        """Named tables are selectable; the others must be small and are always on."""
        sizes = {table.name: table.rows for table in tables}
        for name, ids in self._sorted.items():
            if name not in sizes:
                raise ValueError(f"rows names table {name!r}; the model's tables are {sorted(sizes)}")
            if ids.size and ids[-1] >= sizes[name]:
                raise ValueError(f"rows of table {name!r} has id {ids[-1]}, the table has {sizes[name]} rows")
        space = partition_tables(tables, self.always_on_rows, frozenset(self._sorted))
        missing = [table.name for table in space.selectable if table.name not in self._sorted]
        if missing:
            raise ValueError(
                f"rows does not name {missing}, which have more than always_on_rows={self.always_on_rows} rows"
            )
        return space

    def numbers(self, space: RowSpace) -> I64:
        """The chosen rows as sorted global row ids."""
        parts = [space.number(table.name, self._sorted[table.name]) for table in space.selectable]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> Rule:
        """The same rows at every step."""
        schedule = None
        if self.takes_turns:
            names = [table.name for table in space.selectable]
            schedule = UpdateSchedule([self._sorted[n] for n in names], [self._periods[n] for n in names])
        return _FixedRows(
            space,
            noise_multiplier,
            max_grad_norm,
            expected_batch_size,
            rows=self.numbers(space),
            turns=schedule,
        )


@dataclass(frozen=True)
class _FixedRows(Rule):
    looks_at: ClassVar[LooksAt] = "nothing"
    rows: I64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    turns: UpdateSchedule | None = None

    @property
    def schedule(self) -> UpdateSchedule | None:
        return self.turns

    def select(self, batch: Batch, stream: Stream) -> Selected:
        return Selected(self.rows)


@dataclass(frozen=True)
class PrivateTopK(Selection):
    """FEST whose rows are the noisy top-k of the private data's counts.

    Guarantee: add-or-remove-one example; the joint histogram over all selectable tables moves by at most
    ``contribution_norm`` C in l2 (square root of the number of those tables where an example has one value
    per feature; contributions are clipped to it otherwise); noise of standard deviation ``C / mu``; event
    ``Gaussian(1/mu)`` once; released: the top-k set, which is post-processing of the noisy histogram.
    Where counts are given instead of a loader, each example must have contributed with norm at most C.
    With ``unit="user"`` the same holds for a user: it counts once per row, however many of its examples read it.

    With ``update_every`` every row is trained that is expected to be read, given the noisy histogram (``LEAST_COUNT``), and
    the rows take turns (``FEST``): rare ones are updated every ``update_every`` steps, frequent ones more often, ``k`` rows
    a step on average (more, if all of them in ``update_every`` steps are more). The same event: rows and periods are
    post-processing of the noisy histogram. It has a number for every row here: before training this takes time and memory
    in O(rows of the tables), a step O(touched rows and those that are due).
    """

    source: Any
    k: int
    mu: float = DEFAULT_MU
    contribution_norm: float | None = None
    always_on_rows: int = DEFAULT_ALWAYS_ON_ROWS
    lazy: bool = False
    update_every: int | None = None

    def __post_init__(self) -> None:
        check_always_on(self.always_on_rows)
        object.__setattr__(self, "k", check_count("k", self.k))
        if self.update_every is not None:
            object.__setattr__(self, "update_every", check_count("update_every", self.update_every))
            if self.lazy:
                raise ValueError("update_every: rows that take turns have no lazy noise; leave out lazy=True")
        if not (np.isfinite(self.mu) and self.mu > 0):
            raise ValueError(f"mu must be positive and finite, got {self.mu}")
        norm = self.contribution_norm
        if norm is not None and not (np.isfinite(norm) and norm > 0):
            raise ValueError(f"contribution_norm must be positive and finite, got {norm}")

    def parameters(self) -> dict[str, Any]:
        """Every argument except the data."""
        return {name: value for name, value in super().parameters().items() if name != "source"}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> Selection:
        """Not supported: the data is not saved, only the chosen rows are."""
        raise ValueError("a private top-k cannot be read back before its rows are chosen: state it again")

    def one_off_events(self) -> tuple[DpEvent, ...]:
        """One Gaussian on the histogram."""
        return (top_k_gaussian_event(std=1.0 / self.mu, sensitivity=1.0),)  # in units of C

    def sensitivity(self, space: RowSpace) -> float:
        """C: how far one example moves the joint histogram, in l2."""
        return self.contribution_norm or default_contribution_norm(space)

    def std(self, space: RowSpace) -> float:
        """The standard deviation of the noise on a row's count."""
        return self.sensitivity(space) / self.mu

    def partition_tables(self, tables: Sequence[TableShape]) -> RowSpace:
        """Large tables are selectable."""
        return partition_tables(tables, self.always_on_rows)

    @property
    def takes_turns(self) -> bool:
        """Are rare rows updated every few steps?"""
        return self.update_every not in (None, 1)

    def stand_in(self, tables: Sequence[TableShape]) -> FEST:
        """One row: how many there are decides nothing that is checked."""
        return self.first_rows(tables, 1)

    def first_rows(self, tables: Sequence[TableShape], count: int) -> FEST:
        """The first so many rows of all tables."""
        rows, left = {}, count
        for table in self.partition_tables(tables).selectable:
            rows[table.name] = np.arange(min(left, table.rows))
            left -= rows[table.name].size
        return FEST(rows, self.always_on_rows, lazy=self.lazy, update_every=self.update_every or 1)

    def resolve(
        self,
        tables: Sequence[TableShape],
        count_rows: CountRows,
        stream: Stream,
        charge: Callable[[], None] = free,
    ) -> FEST:
        """Count, noise, take the top k, or all that are worth it."""
        space = self.partition_tables(tables)
        by_table = self.source
        if isinstance(by_table, Mapping):
            check_tables(by_table, space)
        else:
            by_table = count_rows(by_table, self.sensitivity(space))
        counts = [checked_counts(t.name, by_table.get(t.name, ([], [])), t.rows) for t in space.selectable]
        if not space.selectable:
            return FEST({}, self.always_on_rows, event=self.one_off_events()[0], lazy=self.lazy)
        charge()
        numbers = [space.number(t.name, c.ids) for t, c in zip(space.selectable, counts, strict=True)]
        histogram = np.concatenate(numbers), np.concatenate([c.values for c in counts]), space.selectable_size
        if self.takes_turns:
            noisy = noisy_histogram(*histogram, std=self.std(space), stream=stream)
            return self._in_turns(space, noisy)
        k = min(self.k, space.selectable_size)
        chosen = top_k_gaussian(*histogram, k=k, std=self.std(space), stream=stream)
        rows = dict(zip((table.name for table in space.selectable), space.split(chosen), strict=True))
        return FEST(rows, self.always_on_rows, event=self.one_off_events()[0], lazy=self.lazy)

    def _in_turns(self, space: RowSpace, noisy: F64) -> FEST:
        """The rows that are expected to be read, and how often each is updated, by the noisy counts alone."""
        names = [table.name for table in space.selectable]
        by_table = np.split(noisy, space.offsets[1 : len(names)])
        expected = [expected_counts(table, self.std(space)) for table in by_table]
        chosen = [np.flatnonzero(e >= max(LEAST_COUNT, LEAST_SHARE * float(e.mean()))) for e in expected]
        counts = [e[own] for e, own in zip(expected, chosen, strict=True)]
        periods = periods_by_count(np.concatenate(counts), self.k, self.update_every or 1)
        every = np.split(periods, np.cumsum([c.size for c in counts])[:-1])
        return FEST(
            dict(zip(names, chosen, strict=True)),
            self.always_on_rows,
            event=self.one_off_events()[0],
            update_every=dict(zip(names, every, strict=True)),
        )

    def rule(
        self, space: RowSpace, *, noise_multiplier: float, max_grad_norm: float, expected_batch_size: float
    ) -> Rule:
        """Raises: the rows must be chosen first."""
        raise ValueError("the private top-k must be resolved before training; PrivacyEngine does so")
