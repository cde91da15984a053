"""Prepared examples for training: any rows at once, straight from disk, as torch's loaders want them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparsedp.core.arrays import I64
from sparsedp.data.batch import Batch
from sparsedp.data.encoding import Encoding
from sparsedp.data.hashing import mix
from sparsedp.data.row_sets import AllBut, RowList, RowRange, RowSet, within
from sparsedp.data.row_store import open_rows
from sparsedp.data.schema import Schema

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

STRIDE = 2**20
"""How many rows a pass over all of them looks at together."""


@dataclass(frozen=True)
class Period:
    """The rows with `start <= time < stop`; `data.subset(period.rows)` holds them."""

    start: int
    stop: int
    rows: RowSet


class ClickData:
    """A map-style data set: `data[i]` is an example, `data.take(rows)` a batch of arrays.

    It collates by itself: `__getitems__` returns a finished batch of tensors, ((numeric, ids, *bags),
    label). The attribute `collates` says so to loaders that look at it; `loader` makes a torch loader that
    knows.
    """

    collates = True

    def __init__(self, examples: Batch, schema: Schema, rows: RowSet | None = None) -> None:
        self.schema = schema
        self._examples = examples
        self._rows: RowSet = RowRange(0, len(examples)) if rows is None else rows
        self._opened: tuple[str, str | None] | None = None

    @classmethod
    def open(cls, folder: str | Path, *, cache: str | Path | None = None) -> ClickData:
        """Open a prepared folder; the first time, its rows are laid out for random access (in `cache`)."""
        schema = Schema.read(folder)
        data = ClickData(open_rows(Path(folder), schema, None if cache is None else Path(cache)), schema)
        data._opened = (str(Path(folder).resolve()), None if cache is None else str(Path(cache).resolve()))
        return data

    @property
    def encoding(self) -> Encoding:
        """The rules of the preparation, for rows to predict."""
        if self._opened is None:
            raise ValueError("encoding: these examples were not opened from a prepared folder")
        return Encoding.read(self._opened[0])

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: ArrayLike) -> Batch:
        """Return the examples at some rows, in that order, as arrays."""
        return self._examples.take(self._checked(rows))

    def _checked(self, rows: ArrayLike) -> I64:
        """Return where in the memory some rows are."""
        requested = np.asarray(rows, np.int64)
        if requested.ndim != 1:
            raise ValueError(f"rows must be a list of row numbers, got shape {requested.shape}")
        if len(requested) and not (requested.min() >= 0 and requested.max() < len(self)):
            raise IndexError(f"rows must lie in 0..{len(self) - 1}, got {requested.min()}..{requested.max()}")
        return self._rows.at(requested)

    def __getitem__(self, row: int) -> tuple[tuple[Any, ...], torch.Tensor]:
        (numeric, ids, *bags), label = self.take([row]).tensors()
        return (numeric[0], ids[0], *bags), label[0]

    def __getitems__(self, rows: Sequence[int] | I64) -> tuple[tuple[Any, ...], torch.Tensor]:
        # Models look at neither time nor user: to leave them out is a page of the disk less an example.
        return dataclasses.replace(self._examples, time=None, user=None).take(self._checked(rows)).tensors()

    def loader(self, batch_size: int, *, shuffle: bool = False, **options: Any) -> DataLoader[Any]:
        """Return a torch loader over whole batches; further options are those of torch's `DataLoader`."""
        from torch.utils.data import DataLoader

        return DataLoader(self, batch_size, shuffle, collate_fn=_as_it_is, **options)  # type: ignore[arg-type]

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all examples in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.take(np.arange(start, min(start + size, len(self))))

    @cached_property
    def label(self) -> NDArray[np.float32]:
        """The labels of all rows."""
        return self._column(self._examples.label)

    @cached_property
    def time(self) -> NDArray[np.int64]:
        """The time of all rows; the schema says what it counts."""
        if self._examples.time is None:
            raise ValueError("time: the data was prepared without a time column")
        return self._column(self._examples.time)

    @cached_property
    def user(self) -> NDArray[np.int64]:
        """The user of all rows, as hashes."""
        if self._examples.user is None:
            raise ValueError("user: the data was prepared without a column of users (prepare table --user)")
        return self._column(self._examples.user)

    def subset(self, rows: RowSet | Sequence[int] | NDArray[np.int64]) -> ClickData:
        """Return the data set of some of the rows, sharing the memory."""
        chosen = RowList(np.asarray(rows, np.int64)) if isinstance(rows, (Sequence, np.ndarray)) else rows
        part = ClickData(self._examples, self.schema, within(self._rows, chosen))
        part._opened = self._opened
        return part

    def split(self, fraction: float, *, salt: int = 0) -> tuple[ClickData, ClickData]:
        """Return (the rest, about `fraction` of the rows), which rows by a public hash of their position."""
        return self._split(lambda numbers: numbers, fraction, salt)

    def split_users(self, fraction: float, *, salt: int = 0) -> tuple[ClickData, ClickData]:
        """Return (the rest, the rows of about `fraction` of the users), which users by a public hash of them."""
        return self._split(lambda numbers: self.user[numbers], fraction, salt)

    def _split(self, keys: Callable[[I64], I64], fraction: float, salt: int) -> tuple[ClickData, ClickData]:
        _check_fraction(fraction)
        bound, start = np.uint64(int(fraction * 2**64)), np.uint64(salt % 2**64)
        held_out = np.concatenate(
            [
                begin + np.flatnonzero(mix(mix(keys(numbers).astype(np.uint64)) ^ start) < bound)
                for begin, numbers in self._strides()
            ]
        )
        return self.subset(AllBut(len(self), held_out)), self.subset(RowList(held_out))

    def split_by_time(self, fraction: float) -> tuple[ClickData, ClickData]:
        """Return (earlier rows, about `fraction` of the rows that are later); no time is on both sides."""
        _check_fraction(fraction)
        ordered = self.time if self.is_time_ordered else np.sort(self.time)
        return self.split_at(int(ordered[min(len(self) - 1, int(len(self) * (1 - fraction)))]))

    def split_at(self, time: int) -> tuple[ClickData, ClickData]:
        """Return (rows before `time`, rows from `time` on)."""
        if self.is_time_ordered:
            cut = int(np.searchsorted(self.time, time))
            return self.subset(RowRange(0, cut)), self.subset(RowRange(cut, len(self)))
        later = np.flatnonzero(self.time >= time)
        return self.subset(AllBut(len(self), later)), self.subset(RowList(later))

    def periods(self, length: int, *, start: int | None = None) -> list[Period]:
        """Cut the rows into periods of `length` time units from `start` (default: the earliest time).

        Rows before `start` belong to none; periods without rows are left out. The periods hold disjoint rows.
        """
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        order = None if self.is_time_ordered else np.argsort(self.time, kind="stable")
        times = self.time if order is None else self.time[order]
        first = int(times[0]) if start is None else start
        periods = []
        row = int(np.searchsorted(times, first))
        while row < len(times):
            begin = first + (int(times[row]) - first) // length * length
            end = int(np.searchsorted(times, begin + length))
            rows = RowRange(row, end) if order is None else RowList(order[row:end])
            periods.append(Period(begin, begin + length, rows))
            row = end
        return periods

    @cached_property
    def is_time_ordered(self) -> bool:
        """Whether no row is earlier than the one before it."""
        time = self.time
        return all(
            bool(np.all(np.diff(time[at : at + STRIDE + 1]) >= 0)) for at in range(0, len(time), STRIDE)
        )

    def _column(self, values: NDArray[Any]) -> NDArray[Any]:
        if isinstance(self._rows, RowRange):
            return values[self._rows.start : self._rows.stop]
        return np.concatenate([values[self._rows.at(numbers)] for _, numbers in self._strides()])

    def _strides(self) -> Iterator[tuple[int, I64]]:
        for begin in range(0, max(1, len(self)), STRIDE):
            yield begin, np.arange(begin, min(begin + STRIDE, len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._opened is None:
            return ClickData, (self._examples, self.schema, self._rows)
        return _reopen, (*self._opened, self._rows)


def _reopen(folder: str, cache: str | None, rows: RowSet) -> ClickData:
    """Rebuild a data set in another process from its folder rather than from a copy of its rows."""
    return ClickData.open(folder, cache=cache).subset(rows)


def _as_it_is(batch: Any) -> Any:
    return batch


def _check_fraction(fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie in (0, 1), got {fraction}")
