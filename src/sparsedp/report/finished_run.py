"""A finished run as a report reads it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparsedp.accounting import PrivacyStatement
from sparsedp.runs import RunConfig, RunFolder
from sparsedp.runs.data_location import RECORD
from sparsedp.runs.folder import AUDIT
from sparsedp.runs.result import read_result


@dataclass(frozen=True)
class FinishedRun:
    """A finished run's files, read."""

    folder: RunFolder
    config: RunConfig
    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    data: dict[str, Any]
    """Which data it is of, as its folder notes it."""

    audit: dict[str, Any] | None = None
    """What ``sparsedp audit`` found, where it was run."""

    @classmethod
    def read(cls, path: str | Path) -> FinishedRun:
        """From its folder."""
        folder = RunFolder(path)
        config, result = folder.config(), read_result(folder)
        if result is None:
            raise ValueError(f"{path} is not finished; resume it first")
        record, audit = folder.read_json(RECORD) or {}, folder.read_json(AUDIT)
        return cls(folder, config, asdict(result), folder.metrics(), record, audit)

    @property
    def name(self) -> str:
        """Its name in the report."""
        epsilon = "" if self.config.epsilon is None else f", epsilon {self.config.epsilon:g}"
        return self.config.method.label + epsilon

    @property
    def statement(self) -> PrivacyStatement | None:
        """What it cost; None without privacy."""
        fields = self.result["statement"]
        return None if fields is None else PrivacyStatement.from_dict(fields, str(self.folder.path))

    @property
    def rows_per_column(self) -> dict[str, float]:
        """Rows with noise a step by column of the data, or by table where the run does not know the columns."""
        columns = self.result.get("features") or {}
        return {columns.get(table, table): rows for table, rows in self.result["rows_per_table"].items()}
