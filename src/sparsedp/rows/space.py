"""Global row ids over all tables, so that a step makes one joint choice of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.tables import TableShape


@dataclass(frozen=True)
class RowSpace:
    """Global ids for the rows of all tables: first the selectable tables, then those always on.

    A row's global id is its table's offset plus its index within the table; a selection rule chooses among
    ``ids < selectable_size``.
    """

    selectable: tuple[TableShape, ...]
    always_on: tuple[TableShape, ...] = ()

    @cached_property
    def tables(self) -> tuple[TableShape, ...]:
        """All tables in the order of their row ids."""
        return self.selectable + self.always_on

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The first global row id of each table, and the end."""
        return np.array(self.row_offsets, dtype=np.int64)

    @cached_property
    def row_offsets(self) -> tuple[int, ...]:
        """The same as Python integers."""
        return tuple(accumulate((table.rows for table in self.tables), initial=0))

    @cached_property
    def index(self) -> dict[str, int]:
        """A table's position in ``tables``, by name."""
        return {table.name: table_index for table_index, table in enumerate(self.tables)}

    @cached_property
    def selectable_size(self) -> int:
        """The number of selectable rows."""
        return int(self.offsets[len(self.selectable)])

    @cached_property
    def coordinates(self) -> int:
        """The number of embedding coordinates: all of them get noise in dense DP-SGD."""
        return sum(table.size for table in self.tables)

    @cached_property
    def coordinate_offsets(self) -> NDArray[np.int64]:
        """The same for single coordinates of selectable tables: each table's first coordinate id, and the end."""
        return np.cumsum([0] + [table.size for table in self.selectable], dtype=np.int64)

    def row_of_coordinate(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """The global row id of each coordinate id (sorted)."""
        table_index = np.searchsorted(self.coordinate_offsets, coordinates, side="right") - 1
        dims = np.array([table.dim for table in self.selectable], dtype=np.int64)
        rows: NDArray[np.int64] = (coordinates - self.coordinate_offsets[table_index]) // dims[table_index]
        return rows + self.offsets[table_index]

    def number(self, table: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The global row ids of rows ``ids`` of a table."""
        row_ids: NDArray[np.int64] = ids + self.offsets[self.index[table]]
        return row_ids

    def split(self, row_ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Sorted global row ids of selectable rows as sorted row indices per selectable table."""
        cuts = row_ids.searchsorted(self.offsets).tolist()
        return [row_ids[cuts[n] : cuts[n + 1]] - self.row_offsets[n] for n in range(len(self.selectable))]


def partition_tables(
    tables: Sequence[TableShape], always_on_rows: int, chosen: frozenset[str] = frozenset()
) -> RowSpace:
    """Tables of at most ``always_on_rows`` rows are always on, unless ``chosen`` names them."""
    small = [table for table in tables if table.rows <= always_on_rows and table.name not in chosen]
    large = [table for table in tables if table not in small]
    return RowSpace(selectable=tuple(large), always_on=tuple(small))
