"""The public facts of an embedding table."""

from __future__ import annotations

from dataclasses import dataclass

from sparsedp.core.validation import check_count


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
