"""Rows and counts of a table as the user gives them, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts, distinct
from sparsedp.core.validation import LARGEST_COUNT
from sparsedp.rows import RowSpace

TableCounts = Mapping[str, "ArrayLike | tuple[ArrayLike, ArrayLike] | SparseCounts"]
"""Per table: counts of every row, or (ids, counts) of the rows that occur."""


def row_ids(name: str, ids: ArrayLike) -> I64:
    """A table's row ids from the user, sorted and each once."""
    array = np.asarray(ids)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"rows of table {name!r} must be integers, got {array.dtype}")
    unique = distinct(array)
    if unique.size and unique[0] < 0:
        raise ValueError(f"rows of table {name!r} must not be negative, got {unique[0]}")
    return unique


def check_tables(counts: Mapping[str, Any], space: RowSpace) -> None:
    """Counts from the user must be of the model's tables, and of all that rows are chosen in."""
    known = [table.name for table in space.tables]
    for name in counts:
        if name not in known:
            raise ValueError(f"counts: name table {name!r}; the model's tables are {sorted(known)}")
    for table in space.selectable:
        if table.name not in counts:
            raise ValueError(f"counts: none for table {table.name!r}; give ([], []) if no row was read")


def _numbers(name: str, counts: Any) -> NDArray[np.float64]:
    """A list of numbers, or an error that names the table."""
    try:
        given = np.asarray(counts)
        if given.ndim != 1 or given.dtype.kind not in "buif":
            raise TypeError
        return given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"counts of {name!r} must be one number a row, or (ids, counts)") from error


def checked_counts(name: str, table_counts: Any, rows: int | None = None) -> SparseCounts:
    """A table's counts from the user, validated; ``rows`` is the table's size, if known."""
    if isinstance(table_counts, SparseCounts):
        table_counts = table_counts.ids, table_counts.values
    if isinstance(table_counts, tuple):
        if len(table_counts) != 2:
            raise ValueError(f"counts of {name!r} must be one number a row, or (ids, counts)")
        raw_ids, counts = np.asarray(table_counts[0]), _numbers(name, table_counts[1])
    else:
        dense = _numbers(name, table_counts)
        raw_ids = np.flatnonzero(dense)
        counts = dense[raw_ids]
    if raw_ids.shape != counts.shape or not ((counts >= 0) & (counts <= LARGEST_COUNT)).all():
        raise ValueError(
            f"counts of {name!r} must be finite, non-negative and at most {LARGEST_COUNT}, one per id"
        )
    ids = row_ids(name, raw_ids)
    if ids.size != raw_ids.size:
        raise ValueError(f"counts of {name!r} names a row twice")
    size = int(ids[-1]) + 1 if ids.size else 0
    if rows is not None and size > rows:
        raise ValueError(f"counts of {name!r} has id {ids[-1]} of {rows} rows")
    return SparseCounts(ids, counts[np.argsort(raw_ids, kind="stable")], size if rows is None else rows)
