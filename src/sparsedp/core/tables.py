"""The public facts of an embedding table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import TypeIs

from sparsedp.core.validation import check_count, check_scale


@dataclass(frozen=True)
class TableShape:
    """A table of `rows` vectors of length `dim`, of which an example reads at most `values` distinct ones."""

    name: str
    rows: int
    dim: int
    values: int = 1

    def __post_init__(self) -> None:
        for field in ("rows", "dim", "values"):
            what = f"{field} of table {self.name!r}" if self.name else field
            object.__setattr__(self, field, check_count(what, getattr(self, field)))
        if self.values > self.rows:
            raise ValueError(f"values must be at most rows ({self.rows}), got {self.values}")

    @property
    def size(self) -> int:
        """Coordinates of the whole table."""
        return self.rows * self.dim


def table_scales(scale: float | Sequence[float], tables: int) -> list[float]:
    """Return what the rows of each table are multiplied by: one number for all, or one for each."""
    each = list(scale) if is_one_each(scale) else [scale] * tables
    if len(each) != tables:
        raise ValueError(
            f"table_scale must be one number, or one for each of {tables} tables, got {len(each)}"
        )
    return [check_scale("table_scale", one) for one in each]


def is_one_each(scale: float | Sequence[float]) -> TypeIs[Sequence[float]]:
    """Whether a scale says one number for each table."""
    return isinstance(scale, Sequence) and not isinstance(scale, str)
