"""A finished run as a report reads it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparsedp.accounting import PrivacyStatement
from sparsedp.core.typed_fields import check_fields
from sparsedp.runs import RunConfig, RunFolder
from sparsedp.runs.data_location import data_record
from sparsedp.runs.folder import AUDIT
from sparsedp.runs.result import finished_result


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
        config, result = folder.config(), finished_result(folder)
        return cls(folder, config, asdict(result), folder.metrics(), data_record(folder), _read_audit(folder))

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


@dataclass(frozen=True)
class _Shown:
    """The figures of an audit that a report shows."""

    lower_bound: float
    confidence: float
    canaries: int
    steps: int
    recorded_epsilon: float | None = None
    period: int | None = None


def _read_audit(folder: RunFolder) -> dict[str, Any] | None:
    fields = folder.read_json(AUDIT)
    if fields is None:
        return None
    try:
        check_fields(_Shown(**{name: fields[name] for name in _Shown.__annotations__ if name in fields}))
        for whose in ("claimed", "copy"):
            PrivacyStatement.from_dict(fields[whose], whose)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder.path}: audit.json is not the audit of a run ({error})") from error
    return fields
