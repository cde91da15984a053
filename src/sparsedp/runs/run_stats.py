"""Sums over the steps of a run: gradient sizes and speed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparsedp.training import LastStep


@dataclass
class RunStats:
    """Sums of what each step released about itself. Checkpoints hold them, so a resumed run adds to them."""

    steps: int = 0
    examples: int = 0
    seconds: float = 0.0
    rows: int = 0
    gradient_size: int = 0
    table_coordinates: int = 0
    rows_per_table: dict[str, int] = field(default_factory=dict)

    def add(self, step: LastStep | None, examples: int, seconds: float) -> None:
        """Count one step."""
        self.steps += 1
        self.examples += examples
        self.seconds += seconds
        if step is not None:
            self.table_coordinates = step.table_coordinates
            self.add_released(step)

    def add_released(self, step: LastStep) -> None:
        """Count what was released; after the last step, as part of the steps before it."""
        self.rows += step.rows
        self.gradient_size += step.gradient_size
        for name, rows in step.rows_per_table.items():
            self.rows_per_table[name] = self.rows_per_table.get(name, 0) + rows

    @property
    def examples_per_second(self) -> float:
        """Speed, loading excluded."""
        return self.examples / self.seconds if self.seconds else 0.0

    @property
    def mean_rows(self) -> float | None:
        """Embedding rows with noise per step; None without privacy."""
        return self.rows / self.steps if self.table_coordinates else None

    @property
    def mean_gradient_size(self) -> float | None:
        """Embedding coordinates with noise per step."""
        return self.gradient_size / self.steps if self.table_coordinates else None

    @property
    def mean_rows_per_table(self) -> dict[str, float]:
        """Rows with noise per step and table."""
        return {name: rows / self.steps for name, rows in self.rows_per_table.items()}

    @property
    def reduction(self) -> float | None:
        """How many times smaller the embedding gradient is than dense DP-SGD's."""
        size = self.mean_gradient_size
        return None if size is None else self.table_coordinates / max(size, 1e-9)

    def to_record(self) -> dict[str, Any]:
        """All fields as plain values, for a checkpoint."""
        return dict(vars(self))

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> RunStats:
        """From what ``to_record`` returned."""
        return cls(**record)
